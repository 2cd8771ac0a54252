package watersmeet;

import java.io.File;
import java.io.FileNotFoundException;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkFiles;
import org.apache.spark.TaskContext;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.util.SerializableConfiguration;
import org.apache.spark.util.TaskCompletionListener;

/**
 * Copies a file of any file system to this machine, with the settings of the session, and returns where it is.
 *
 * <p>The copy lies in the folder in which the executor works, and is deleted when the task ends, if its reader has not
 * deleted it. There is none of a file that is gone.
 *
 * <p>Janino compiles this: no lambdas, no diamonds.
 */
public class LocalCopies implements UDF1 {
    private static final long serialVersionUID = 1;
    private static final int BUFFER = 1 << 20;

    private final Broadcast settings;

    /** With the settings that Spark's own scans have: a broadcast {@code SerializableConfiguration}. */
    public LocalCopies(Broadcast settings) {
        this.settings = settings;
    }

    public Object call(Object address) throws Exception {
        Path path = new Path((String) address);
        Configuration configuration = ((SerializableConfiguration) settings.value()).value();
        File folder = new File(SparkFiles.getRootDirectory()).getAbsoluteFile();
        File copy = File.createTempFile("watersmeet-", ".copy", folder);
        TaskContext task = TaskContext.get();
        if (task != null) {
            TaskCompletionListener deletion = new Deletion(copy);
            task.addTaskCompletionListener(deletion);
        }
        try {
            copyTo(path.getFileSystem(configuration).open(path), copy);
        } catch (FileNotFoundException error) {
            copy.delete();
        }
        return copy.getPath();
    }

    private static void copyTo(InputStream input, File copy) throws IOException {
        try {
            OutputStream output = new FileOutputStream(copy);
            try {
                byte[] buffer = new byte[BUFFER];
                for (int count = input.read(buffer); count >= 0; count = input.read(buffer)) {
                    output.write(buffer, 0, count);
                }
            } finally {
                output.close();
            }
        } finally {
            input.close();
        }
    }

    /** Deletes a copy when its task ends. */
    public static class Deletion implements TaskCompletionListener {
        private final File copy;

        public Deletion(File copy) {
            this.copy = copy;
        }

        public void onTaskCompletion(TaskContext task) {
            copy.delete();
        }
    }
}
