package watersmeet;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Iterator;
import java.util.NoSuchElementException;

import org.apache.spark.api.java.function.MapPartitionsFunction;
import org.apache.spark.sql.Row;

/**
 * Puts the records of a task together in blocks, each of which crosses to a worker as one value.
 *
 * <p>A row is the value of a record, its partition and offset and, if there may be several topics, its topic. A block
 * has records of one partition: their number, the partition, the bytes of the topic's name, then the name, the offsets,
 * the lengths (-1: NULL) and the values, all numbers with the low byte first.
 *
 * <p>Janino compiles this: no lambdas, no diamonds.
 */
public class RecordBlocks implements MapPartitionsFunction {
    private static final long serialVersionUID = 1;
    private static final int ROWS = 16384;
    private static final int BYTES = 1 << 20;

    public Iterator call(Iterator rows) {
        return new Blocks(rows);
    }

    /** The blocks of one task. */
    public static class Blocks implements Iterator {
        private final Iterator rows;
        private final long[] offsets = new long[ROWS];
        private final int[] lengths = new int[ROWS];
        private byte[] values = new byte[BYTES];
        private Row waiting;

        public Blocks(Iterator rows) {
            this.rows = rows;
        }

        public boolean hasNext() {
            return waiting != null || rows.hasNext();
        }

        public Object next() {
            if (!hasNext()) {
                throw new NoSuchElementException();
            }
            Row row = waiting == null ? (Row) rows.next() : waiting;
            waiting = null;
            int partition = row.getInt(1);
            String topic = row.length() > 3 ? row.getString(3) : "";
            int number = 0;
            int size = 0;
            while (row != null) {
                byte[] value = (byte[]) row.get(0);
                offsets[number] = row.getLong(2);
                lengths[number] = value == null ? -1 : value.length;
                number++;
                if (value != null) {
                    if (values.length - size < value.length) {
                        values = Arrays.copyOf(values, size + value.length + BYTES);
                    }
                    System.arraycopy(value, 0, values, size, value.length);
                    size += value.length;
                }
                row = null;
                if (number < ROWS && size < BYTES && rows.hasNext()) {
                    row = (Row) rows.next();
                    boolean isOther = row.getInt(1) != partition;
                    if (isOther || (row.length() > 3 && !topic.equals(row.getString(3)))) {
                        waiting = row;
                        row = null;
                    }
                }
            }
            byte[] name = topic.getBytes(StandardCharsets.UTF_8);
            ByteBuffer block = ByteBuffer.allocate(12 + name.length + 12 * number + size);
            block.order(ByteOrder.LITTLE_ENDIAN);
            block.putInt(number).putInt(partition).putInt(name.length).put(name);
            for (int i = 0; i < number; i++) {
                block.putLong(offsets[i]);
            }
            for (int i = 0; i < number; i++) {
                block.putInt(lengths[i]);
            }
            block.put(values, 0, size);
            return block.array();
        }

        public void remove() {
            throw new UnsupportedOperationException();
        }
    }
}
