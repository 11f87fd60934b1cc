// [leader]
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.time.Duration;
import java.util.function.BooleanSupplier;

final class Leader {
    interface Work {
        /** Asks isMine before each part, and stops when it says no. */
        void run(long token, BooleanSupplier isMine) throws SQLException;
    }

    /** For a loop, with a pause of a third of the time to live: if the lease is free, this node leads. */
    static void lead(String url, String node, Duration ttl, Work work) throws SQLException {
        try (Connection connection = DriverManager.getConnection(url)) {
            long asked = System.nanoTime();
            Long token = Leases.acquire(connection, "scheduler", node, ttl);
            if (token == null) {
                return; // somebody else leads
            }
            try (Heartbeat heartbeat = new Heartbeat(url, "scheduler", token, ttl, asked)) {
                work.run(token, heartbeat::isMine);
            }
            Leases.release(connection, "scheduler", token); // of a lease that is lost: false, and nothing happens
        }
    }
}
// [end leader]
