package watersmeet;

import java.io.IOException;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.JobContext;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.spark.internal.io.FileCommitProtocol;
import org.apache.spark.internal.io.FileNameSpec;

/**
 * Writes the files of a batch into a hidden folder without renames: a sink shows those of the attempts that count.
 *
 * <p>Every attempt of a task writes files of names of its own, so one that was given up changes nothing that another
 * has written. The driver notes the files of the attempts whose results it has taken; others are deleted with the
 * folder.
 *
 * <p>Janino compiles this: no lambdas, no diamonds.
 */
public class BatchFiles extends FileCommitProtocol implements Serializable {
    private static final long serialVersionUID = 1;
    /** The names of the files of jobs that have ended, by the name of the folder. */
    private static final ConcurrentHashMap COMMITTED = new ConcurrentHashMap();

    private final String folder;
    private transient ArrayList names;

    public BatchFiles(String job, String folder, boolean replacesPartitions) {
        this.folder = folder;
    }

    /** The names of the files in a folder that count, once; null: no job of this class has ended there. */
    public static List take(String name) {
        return (List) COMMITTED.remove(name);
    }

    public void setupJob(JobContext job) {
        COMMITTED.remove(new Path(folder).getName());
    }

    public void commitJob(JobContext job, scala.collection.immutable.Seq messages) {
        ArrayList all = new ArrayList();
        scala.collection.Iterator each = messages.iterator();
        while (each.hasNext()) {
            all.addAll((List) ((FileCommitProtocol.TaskCommitMessage) each.next()).obj());
        }
        COMMITTED.put(new Path(folder).getName(), all);
    }

    public void abortJob(JobContext job) {
        COMMITTED.remove(new Path(folder).getName());
    }

    public void setupTask(TaskAttemptContext task) {
        names = new ArrayList();
    }

    public String newTaskTempFile(TaskAttemptContext task, scala.Option partition, String extension) {
        return newTaskTempFile(task, partition, new FileNameSpec("", extension));
    }

    public String newTaskTempFile(TaskAttemptContext task, scala.Option partition, FileNameSpec name) {
        if (partition.isDefined()) {
            throw new UnsupportedOperationException("partitions of files");
        }
        int number = task.getTaskAttemptID().getTaskID().getId();
        String file = String.format(
            "%spart-%05d-%s%s",
            new Object[] {name.prefix(), Integer.valueOf(number), UUID.randomUUID(), name.suffix()});
        names.add(file);
        return new Path(folder, file).toString();
    }

    public String newTaskTempFileAbsPath(TaskAttemptContext task, String place, String extension) {
        throw new UnsupportedOperationException("files of other folders");
    }

    public FileCommitProtocol.TaskCommitMessage commitTask(TaskAttemptContext task) {
        return new FileCommitProtocol.TaskCommitMessage(names);
    }

    public void abortTask(TaskAttemptContext task) {
        try {
            FileSystem files = new Path(folder).getFileSystem(task.getConfiguration());
            for (int i = 0; i < names.size(); i++) {
                files.delete(new Path(folder, (String) names.get(i)), false);
            }
        } catch (IOException error) {
            // They do not count, and are deleted with the folder.
            return;
        }
    }
}
