// [heartbeat]
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;

/** A thread that extends a lease, on a connection of its own. */
final class Heartbeat implements AutoCloseable {
    private final Thread thread = new Thread(this::beat, "heartbeat");
    private final String url;
    private final String name;
    private final long token;
    private final Duration ttl;
    private volatile long deadline;
    private volatile boolean lost;

    /** asked: System.nanoTime() from before the lease was acquired. */
    Heartbeat(String url, String name, long token, Duration ttl, long asked) {
        this.url = url;
        this.name = name;
        this.token = token;
        this.ttl = ttl;
        this.deadline = asked + ttl.toNanos();
        thread.setDaemon(true);
        thread.start();
    }

    /** Ask it before each part of the work, and stop when it says no. */
    boolean isMine() {
        return !lost && System.nanoTime() - deadline < 0;
    }

    private void beat() {
        while (isMine()) {
            try (Connection connection = Leases.connect(url, ttl)) {
                while (isMine()) {
                    long asked = System.nanoTime(); // before the call: the answer may be late
                    if (Leases.extend(connection, name, token)) {
                        deadline = asked + ttl.toNanos();
                    } else {
                        lost = true;
                    }
                    Thread.sleep(ttl.toMillis() / 3);
                }
            } catch (SQLException unknown) {
                pause(ttl.toMillis() / 10); // an error says nothing about the lease: connect again, and ask
            } catch (InterruptedException closed) {
                return;
            }
        }
    }

    private void pause(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException closed) {
            lost = true;
        }
    }

    @Override
    public void close() {
        thread.interrupt();
    }
}
// [end heartbeat]
