package watersmeet;

import java.io.ByteArrayOutputStream;
import java.io.EOFException;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.OutputStream;
import java.util.Collections;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BulkDelete;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.permission.FsPermission;

import PACKAGE.CheckpointFileManager;

/**
 * The files of checkpoints, with few requests to the file system.
 *
 * <p>In a store that creates a file only if it is not there, a file is written under its name: it appears when it is
 * closed, and of two drivers that create it one fails. Elsewhere the file manager of Spark's choice writes it. A small
 * file of a source's log, which Spark reads soon after it has written it, is read from memory. Nothing looks for the
 * file of a log that follows the last one written here: if another driver has written it, creating it fails.
 *
 * <p>Janino compiles this: no lambdas, no diamonds. PACKAGE stands for the package of Spark's file manager.
 */
public class CheckpointFiles implements CheckpointFileManager {
    static final String SETTING = "spark.sql.streaming.checkpointFileManagerClass";
    static final String CONDITIONAL = "fs.option.create.conditional.overwrite";
    /** Skips the request that looks for a folder of that name. */
    static final String UNPROBED = "fs.s3a.create.performance";
    static final Pattern LOG = Pattern.compile(".*/(?:offsets|commits|sources/\\d+|_spark_metadata)/[^/]+");
    static final Pattern NUMBER = Pattern.compile("(\\d{1,18})(?:\\.compact)?");
    static final Pattern READ_AGAIN = Pattern.compile(".*/(?:sources/\\d+|_spark_metadata)/[^/]+");
    static final Pattern STATE = Pattern.compile(".*/state/.*\\.(?:changelog|delta|snapshot|zip|sst|log)");
    static final int KEPT_FILES = 32;
    static final int KEPT_BYTES = 1 << 16;

    /** The file system, if it creates files conditionally; else null. */
    private final FileSystem store;
    /** Spark's own file manager where {@link #store} is null. */
    private final CheckpointFileManager other;
    private final Path root;
    /** The content of small files that were written here, the oldest first. */
    private final LinkedHashMap written = new LinkedHashMap();
    /** The number of the last file of this log that was created here; -1: there is none. */
    private volatile long lastCreated = -1;

    public CheckpointFiles(Path path, Configuration settings) throws IOException {
        FileSystem files = path.getFileSystem(settings);
        root = files.makeQualified(path);
        if (files.hasPathCapability(root, CONDITIONAL)) {
            store = files;
            other = null;
        } else {
            Configuration plain = new Configuration(settings);
            plain.unset(SETTING);
            store = null;
            other = PACKAGE.CheckpointFileManager$.MODULE$.create(path, plain);
        }
    }

    public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
        try {
            if (store == null) {
                return new WholeFile(new Target(this, path, other.createAtomic(path, overwrite), overwrite));
            }
            FSDataOutputStreamBuilder builder = store.createFile(path);
            builder.recursive();
            builder.overwrite(overwrite);
            if (overwrite) {
                builder.opt(UNPROBED, true);
            } else {
                builder.must(CONDITIONAL, true);
            }
            return new WholeFile(new Target(this, path, (FSDataOutputStream) builder.build(), overwrite));
        } catch (IOException error) {
            throw CheckpointFiles.rethrow(error);
        }
    }

    public FSDataInputStream open(Path path) {
        byte[] content = contentOf(path);
        if (content != null) {
            return new FSDataInputStream(new Content(content));
        }
        try {
            return store == null ? other.open(path) : store.open(path);
        } catch (IOException error) {
            throw CheckpointFiles.rethrow(error);
        }
    }

    public FileStatus[] list(Path path, PathFilter filter) {
        try {
            return store == null ? other.list(path, filter) : store.listStatus(path, filter);
        } catch (IOException error) {
            throw CheckpointFiles.rethrow(error);
        }
    }

    public void mkdirs(Path path) {
        try {
            if (store == null) {
                other.mkdirs(path);
            } else {
                store.mkdirs(path, FsPermission.getDirDefault());
            }
        } catch (IOException error) {
            throw CheckpointFiles.rethrow(error);
        }
    }

    public boolean exists(Path path) {
        if (contentOf(path) != null) {
            return true;
        }
        if (lastCreated >= 0 && numberOf(path) == lastCreated + 1) {
            return false;
        }
        try {
            if (store == null) {
                return other.exists(path);
            }
            return matches(LOG, path) ? store.isFile(path) : store.exists(path);
        } catch (IOException error) {
            throw CheckpointFiles.rethrow(error);
        }
    }

    public void delete(Path path) {
        synchronized (written) {
            written.remove(path.getName());
        }
        try {
            if (store == null) {
                other.delete(path);
            } else if (matches(LOG, path) || matches(STATE, path)) {
                deleteFile(path);
            } else {
                store.delete(path, true);
            }
        } catch (FileNotFoundException error) {
            return;
        } catch (IOException error) {
            throw CheckpointFiles.rethrow(error);
        }
    }

    /** Delete what is known to be a file: without looking for a folder first, and for its parent afterwards. */
    private void deleteFile(Path path) throws IOException {
        BulkDelete bulk = store.createBulkDelete(path.getParent());
        try {
            List failures = bulk.bulkDelete(Collections.singletonList(store.makeQualified(path)));
            if (!failures.isEmpty()) {
                throw new IOException("could not be deleted: " + failures);
            }
        } finally {
            bulk.close();
        }
    }

    public boolean isLocal() {
        return store == null && other.isLocal();
    }

    public Path createCheckpointDirectory() {
        if (store == null) {
            return other.createCheckpointDirectory();
        }
        mkdirs(root);
        return root;
    }

    /** Note whether a file was created that was not there. */
    void noteCreation(Path path, boolean succeeded) {
        lastCreated = succeeded ? numberOf(path) : -1;
    }

    /** The number of a file of the log whose manager this is; -1: it is another file. */
    private long numberOf(Path path) {
        Matcher match = NUMBER.matcher(path.getName());
        return matches(LOG, path) && isHere(path) && match.matches() ? Long.parseLong(match.group(1)) : -1;
    }

    void keep(Path path, byte[] content) {
        synchronized (written) {
            written.put(path.getName(), content);
            Iterator names = written.keySet().iterator();
            while (written.size() > KEPT_FILES) {
                names.next();
                names.remove();
            }
        }
    }

    /** The content of a file that is in memory; null: it is not. */
    private byte[] contentOf(Path path) {
        if (!isKept(path)) {
            return null;
        }
        synchronized (written) {
            return (byte[]) written.get(path.getName());
        }
    }

    /** Whether the content of a file is kept: that of a log whose manager this is. */
    boolean isKept(Path path) {
        return matches(READ_AGAIN, path) && isHere(path);
    }

    private boolean isHere(Path path) {
        return root.toUri().getPath().equals(path.getParent().toUri().getPath());
    }

    private static boolean matches(Pattern pattern, Path path) {
        return pattern.matcher(path.toUri().getPath()).matches();
    }

    /** Throws any exception: Spark's methods are not declared to throw the ones that they throw. */
    static RuntimeException rethrow(Throwable error) {
        org.apache.spark.unsafe.Platform.throwException(error);
        return new IllegalStateException(error);
    }
}

/** A file that appears whole when it is closed, or not at all. */
class WholeFile extends CheckpointFileManager.CancellableFSDataOutputStream {
    private final Target target;

    WholeFile(Target target) {
        super(target);
        this.target = target;
    }

    public void cancel() {
        target.cancel();
    }
}

/** Where a file is written. After a failure, closing fails each time. */
class Target extends OutputStream {
    private final CheckpointFiles owner;
    private final Path path;
    private final FSDataOutputStream file;
    private final boolean replaces;
    /** What is written, while it is to be kept; null: it is not. */
    private ByteArrayOutputStream copy;
    private boolean ended = false;
    private Throwable failure = null;

    Target(CheckpointFiles owner, Path path, FSDataOutputStream file, boolean replaces) {
        this.owner = owner;
        this.path = path;
        this.file = file;
        this.replaces = replaces;
        this.copy = owner.isKept(path) ? new ByteArrayOutputStream() : null;
    }

    public synchronized void write(int value) throws IOException {
        write(new byte[] {(byte) value}, 0, 1);
    }

    public synchronized void write(byte[] bytes, int offset, int length) throws IOException {
        try {
            file.write(bytes, offset, length);
        } catch (Throwable error) {
            failure = error;
            throw CheckpointFiles.rethrow(error);
        }
        if (copy != null) {
            copy.write(bytes, offset, length);
            copy = copy.size() > CheckpointFiles.KEPT_BYTES ? null : copy;
        }
    }

    public synchronized void flush() throws IOException {
        file.flush();
    }

    public synchronized void close() throws IOException {
        if (failure == null && !ended) {
            ended = true;
            try {
                file.close();
            } catch (Throwable error) {
                failure = isThere(error) ? new FileAlreadyExistsException(path + " already exists") : error;
                if (failure != error) {
                    failure.initCause(error);
                }
            }
            if (failure == null && copy != null) {
                owner.keep(path, copy.toByteArray());
            }
            if (!replaces) {
                owner.noteCreation(path, failure == null);
            }
        }
        if (failure != null) {
            cancel();
            throw CheckpointFiles.rethrow(failure);
        }
    }

    synchronized void cancel() {
        if (ended) {
            return;
        }
        ended = true;
        if (file instanceof CheckpointFileManager.CancellableFSDataOutputStream) {
            ((CheckpointFileManager.CancellableFSDataOutputStream) file).cancel();
        } else {
            file.abort();
        }
    }

    /** Whether the store says that the file is there already. */
    private static boolean isThere(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause.getClass().getSimpleName().equals("RemoteFileChangedException")
                    || String.valueOf(cause.getMessage()).contains("Status Code: 412")) {
                return true;
            }
        }
        return false;
    }
}

/** A file in memory. */
class Content extends FSInputStream {
    private final byte[] bytes;
    private int position = 0;

    Content(byte[] bytes) {
        this.bytes = bytes;
    }

    public int read() {
        return position < bytes.length ? bytes[position++] & 0xff : -1;
    }

    public int read(byte[] into, int offset, int length) {
        int count = Math.min(length, bytes.length - position);
        if (count <= 0) {
            return length == 0 ? 0 : -1;
        }
        System.arraycopy(bytes, position, into, offset, count);
        position += count;
        return count;
    }

    public int available() {
        return bytes.length - position;
    }

    public void seek(long to) throws IOException {
        if (to < 0 || to > bytes.length) {
            throw new EOFException("there are " + bytes.length + " bytes");
        }
        position = (int) to;
    }

    public long getPos() {
        return position;
    }

    public boolean seekToNewSource(long to) {
        return false;
    }
}
