import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;

/**
 * The join of two topics into a third on Kafka Streams: BROKER LEFT RIGHT JOINED WITHIN LAG FOLDER, in milliseconds.
 *
 * <p>Records are keyed by their id, so nothing is shuffled. It runs until the standard input ends, and tells when it
 * does. State is in RocksDB, with a changelog on the broker, as Kafka Streams has it by default.
 */
public final class StreamsJoin {
    public static void main(String[] given) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, Row> left = side(builder, given[1], true);
        KStream<String, Row> right = side(builder, given[2], false);
        JoinWindows within = JoinWindows.ofTimeDifferenceAndGrace(millis(given[4]), millis(given[5]));
        left.join(right, Row::joined, within, StreamJoined.with(Serdes.String(), kept(true), kept(false)))
                .to(given[3], Produced.with(Serdes.String(), Serdes.ByteArray()));

        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, given[3]);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given[0]);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, given[6]);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        settings.put(StreamsConfig.producerPrefix("linger.ms"), "5");

        CountDownLatch running = new CountDownLatch(1);
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
            streams.setStateListener((now, before) -> {
                if (now == KafkaStreams.State.RUNNING) {
                    running.countDown();
                }
            });
            streams.start();
            running.await();
            System.out.println("ready");
            System.in.readAllBytes();
        }
    }

    private static KStream<String, Row> side(StreamsBuilder builder, String topic, boolean isLeft) {
        Serde<Row> json = Serdes.serdeFrom((of, row) -> null, (of, value) -> Row.read(value, isLeft));
        return builder.stream(
                topic,
                Consumed.with(Serdes.String(), json)
                        .withTimestampExtractor((record, before) -> ((Row) record.value()).ts));
    }

    /** A row as it is kept. */
    private static Serde<Row> kept(boolean isLeft) {
        return Serdes.serdeFrom(
                (of, row) -> ByteBuffer.allocate(24).putLong(row.id).putLong(row.ts).putDouble(row.amount).array(),
                (of, bytes) -> {
                    ByteBuffer read = ByteBuffer.wrap(bytes);
                    Row row = new Row();
                    row.id = read.getLong();
                    row.ts = read.getLong();
                    row.amount = read.getDouble();
                    row.isLeft = isLeft;
                    return row;
                });
    }

    private static Duration millis(String number) {
        return Duration.ofMillis(Long.parseLong(number));
    }
}
