// [leader]
import java.io.IOException;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.logging.Logger;

final class Leader {
    private static final Logger LOG = Logger.getLogger("leader");

    interface Work {
        /** One round, each of whose statements is over within a third of the time to live. */
        void round(Connection connection, long token) throws IOException, SQLException;
    }

    /** Until the thread is interrupted. When a leader dies, another one leads at most ttl and a third of it later. */
    static void run(String url, String node, Duration ttl, Work work) throws InterruptedException {
        while (true) {
            try {
                lead(url, node, ttl, work);
            } catch (SQLException failure) { // LX001 as well: this term is over, and the node a candidate again
                LOG.warning("not the leader: " + Errors.explain(failure));
            }
            Thread.sleep(ttl.toMillis() / 3);
        }
    }

    /** A term. Its token is a constant: nothing that was read under another one is written under this one. */
    private static void lead(String url, String node, Duration ttl, Work work)
            throws SQLException, InterruptedException {
        try (Connection connection = Leases.connect(url, ttl)) {
            long asked = System.nanoTime();
            Long token = Leases.acquire(connection, "scheduler", node, ttl);
            if (token == null) {
                return; // somebody else leads
            }
            LOG.info("leads under token " + token);
            try (Heartbeat heartbeat = new Heartbeat(url, "scheduler", token, ttl, asked)) {
                while (heartbeat.isMine()) {
                    try {
                        work.round(connection, token);
                    } catch (IOException failure) { // of the source: no reason to give up
                        LOG.warning("no work this time: " + failure);
                    }
                    Thread.sleep(ttl.toMillis() / 10);
                }
                LOG.warning("token " + token + " is lost");
            } catch (InterruptedException stopped) {
                Leases.release(connection, "scheduler", token); // the next one need not wait for the expiry
                throw stopped;
            }
        }
    }
}
// [end leader]
