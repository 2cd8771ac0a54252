import com.hazelcast.config.Config;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.jet.Job;
import com.hazelcast.jet.Traverser;
import com.hazelcast.jet.Traversers;
import com.hazelcast.jet.core.JobStatus;
import com.hazelcast.jet.kafka.KafkaSinks;
import com.hazelcast.jet.kafka.KafkaSources;
import com.hazelcast.jet.pipeline.Pipeline;
import com.hazelcast.jet.pipeline.StreamStage;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The join of two topics into a third on Hazelcast: BROKER LEFT RIGHT JOINED WITHIN LAG, in milliseconds.
 *
 * <p>Pipelines have no join of streams within bounds. This is one by hand: both streams merged, and by key what may
 * still be met. It runs until the standard input ends, and tells when it does. State is on the heap, without snapshots.
 */
public final class JetJoin {
    public static void main(String[] given) throws Exception {
        long within = Long.parseLong(given[4]);
        long lag = Long.parseLong(given[5]);
        Properties read = properties(given[0]);
        read.setProperty("key.deserializer", ByteArrayDeserializer.class.getName());
        read.setProperty("value.deserializer", ByteArrayDeserializer.class.getName());
        read.setProperty("auto.offset.reset", "earliest");
        Properties write = properties(given[0]);
        write.setProperty("key.serializer", ByteArraySerializer.class.getName());
        write.setProperty("value.serializer", ByteArraySerializer.class.getName());
        write.setProperty("linger.ms", "5");

        Pipeline pipeline = Pipeline.create();
        // Rows of a key come in the order of their topics, up to the lag: what the state forgets depends on it.
        pipeline.setPreserveOrder(true);
        StreamStage<Row> left = side(pipeline, read, given[1], true, lag);
        StreamStage<Row> right = side(pipeline, read, given[2], false, lag);
        left.merge(right)
                .groupingKey(row -> row.id)
                .flatMapStateful(
                        2 * (within + lag), Kept::new, (kept, key, row) -> kept.meets(row, within, lag),
                        (kept, key, time) -> Traversers.<byte[]>empty())
                .writeTo(KafkaSinks.<byte[], byte[], byte[]>kafka(write, given[3], row -> null, row -> row));

        Config config = new Config();
        config.setProperty("hazelcast.logging.type", "none");
        config.setProperty("hazelcast.phone.home.enabled", "false");
        config.getNetworkConfig().getJoin().getAutoDetectionConfig().setEnabled(false);
        config.getNetworkConfig().getJoin().getMulticastConfig().setEnabled(false);
        config.getNetworkConfig().getInterfaces().setEnabled(true).addInterface("127.0.0.1");
        config.getJetConfig().setEnabled(true).setCooperativeThreadCount(2);
        HazelcastInstance member = Hazelcast.newHazelcastInstance(config);
        Job job = member.getJet().newJob(pipeline);
        while (job.getStatus() != JobStatus.RUNNING) {
            if (job.getStatus() == JobStatus.FAILED) {
                job.join();
            }
            Thread.sleep(20);
        }
        System.out.println("ready");
        System.in.readAllBytes();
        member.getLifecycleService().terminate();
    }

    private static Properties properties(String address) {
        Properties made = new Properties();
        made.setProperty("bootstrap.servers", address);
        return made;
    }

    private static StreamStage<Row> side(
            Pipeline pipeline, Properties read, String topic, boolean isLeft, long lag) {
        return pipeline
                .readFrom(KafkaSources.<byte[], byte[], Row>kafka(
                        read, record -> Row.read(record.value(), isLeft), topic))
                .withTimestamps(row -> row.ts, lag);
    }

    /** The rows of a key that may still be met. */
    private static final class Kept implements Serializable {
        private final Side left = new Side();
        private final Side right = new Side();

        Traverser<byte[]> meets(Row row, long within, long lag) {
            Side own = row.isLeft ? left : right;
            Side other = row.isLeft ? right : left;
            own.latest = Math.max(own.latest, row.ts);
            other.forget(own.latest - lag - within);
            own.rows.add(row);
            List<byte[]> found = new ArrayList<>(other.rows.size());
            for (Row met : other.rows) {
                if (Math.abs(met.ts - row.ts) <= within) {
                    found.add(row.isLeft ? Row.joined(row, met) : Row.joined(met, row));
                }
            }
            return Traversers.traverseIterable(found);
        }
    }

    private static final class Side implements Serializable {
        private final List<Row> rows = new ArrayList<>(4);
        private long latest = Long.MIN_VALUE / 2;

        void forget(long before) {
            for (Iterator<Row> each = rows.iterator(); each.hasNext(); ) {
                if (each.next().ts < before) {
                    each.remove();
                }
            }
        }
    }
}
