import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.Serializable;

/** A row of either side, read from JSON, and a joined row, written as JSON. */
public final class Row implements Serializable {
    private static final ObjectReader READER =
            new ObjectMapper().disable(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES).readerFor(Row.class);
    private static final JsonFactory WRITER = new JsonFactory();

    public long id;
    public long ts;
    public double amount;
    public boolean isLeft;

    static Row read(byte[] value, boolean isLeft) {
        try {
            Row row = READER.readValue(value);
            row.isLeft = isLeft;
            return row;
        } catch (IOException problem) {
            throw new IllegalArgumentException(problem);
        }
    }

    static byte[] joined(Row left, Row right) {
        ByteArrayOutputStream written = new ByteArrayOutputStream(128);
        try (JsonGenerator json = WRITER.createGenerator(written)) {
            json.writeStartObject();
            json.writeNumberField("id", left.id);
            json.writeNumberField("ts", left.ts);
            json.writeNumberField("amount", left.amount);
            json.writeNumberField("right_ts", right.ts);
            json.writeNumberField("right_amount", right.amount);
            json.writeEndObject();
        } catch (IOException problem) {
            throw new IllegalArgumentException(problem);
        }
        return written.toByteArray();
    }
}
