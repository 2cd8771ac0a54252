#!/bin/bash
# The entry point of the image. Spark starts the pods that it makes on Kubernetes with `executor` or `driver` as the first
# argument, and with the rest in the environment; everything else is a command of watersmeet.
set -euo pipefail

classpath() {
    # In this order: configuration, Spark, the user's.
    local parts=() part
    for part in "${SPARK_CONF_DIR:-}" "${HADOOP_CONF_DIR:-}" "$SPARK_HOME/jars/*" "${SPARK_CLASSPATH:-}"; do
        [ -z "$part" ] || parts+=("$part")
    done
    local IFS=:
    echo "${parts[*]}"
}

case "${1:-}" in
executor)
    # SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ... are options of Java, of which each may have spaces.
    options=()
    for ((number = 0; ; number++)); do
        name=SPARK_JAVA_OPT_$number
        [ -n "${!name+set}" ] || break
        options+=("${!name}")
    done
    exec "$JAVA_HOME/bin/java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
        -cp "$(classpath)" org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
driver)
    shift
    exec "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
*)
    exec watersmeet "$@"
    ;;
esac
