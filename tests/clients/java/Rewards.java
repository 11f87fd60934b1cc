// [cron]
import java.net.UnknownHostException;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;

final class Rewards {
    private static final String LEASE = "daily-reward";
    private static final Duration TTL = Duration.ofMinutes(1); // three times as long as one day's payment may take
    private static final String ZONE = "Europe/Berlin"; // the session's own would be that of the JVM
    private static final String BEGIN = "00:00"; // "23:55": a day goes from there to 23:55 of the next

    public static void main(String[] arguments) throws SQLException, UnknownHostException {
        System.out.println(LEASE + ": " + pay(arguments[0], Leases.node()));
    }

    /** Pays each player for today, and for the days that were missed. Gives what has happened. */
    static String pay(String url, String node) throws SQLException {
        Long token = null;
        try (Connection connection = Leases.connect(url, TTL)) { // its close rolls back what has failed
            long deadline = System.nanoTime() + TTL.toNanos();
            token = Leases.acquire(connection, LEASE, node, TTL);
            if (token == null) {
                boolean done = Boolean.parseBoolean(select(connection, "SELECT coalesce((SELECT state = 'completed'"
                        + " FROM lease_status WHERE name = ?), false)::text", LEASE));
                return done ? "done already for today" : "somebody else has it";
            }
            // Once, so that midnight does not come in between.
            String today = select(connection, "SELECT (now() AT TIME ZONE ? - ?::interval)::date::text", ZONE, BEGIN);
            while (System.nanoTime() - deadline < 0) {
                if (payDay(connection, token, today)) {
                    return "done";
                }
                long asked = System.nanoTime();
                if (!Leases.extend(connection, LEASE, token)) {
                    return "lost: token " + token + " was taken over";
                }
                deadline = asked + TTL.toNanos();
            }
            return "lost: token " + token + " has expired";
        } catch (SQLException failure) {
            if (token == null || !Errors.mayBeLost(failure)) {
                throw failure;
            }
            return "lost: token " + token + ": " + Errors.explain(failure); // the next one goes on from the checkpoint
        }
    }

    /** One transaction: the day, the checkpoint that says so, and with the last day the end of the job. */
    private static boolean payDay(Connection connection, long token, String today) throws SQLException {
        connection.setAutoCommit(false);
        Leases.fence(connection, LEASE, token);
        String next = select(connection, "SELECT coalesce((lease_checkpoint(?) ->> 'paid')::date + 1, ?::date)::text",
                LEASE, today);
        if (next.compareTo(today) <= 0) {
            try (Statement statement = connection.createStatement()) {
                statement.executeUpdate("UPDATE player SET coins = coins + 100");
            }
            select(connection, "SELECT lease_checkpoint(?, ?::bigint, jsonb_build_object('paid', ?::text))::text",
                    LEASE, Long.toString(token), next);
        }
        boolean done = next.compareTo(today) >= 0;
        if (done) {
            select(connection, "SELECT lease_complete(?, ?::bigint,"
                    + " until => (?::date + 1 + ?::time) AT TIME ZONE ?)::text",
                    LEASE, Long.toString(token), today, BEGIN, ZONE);
        }
        connection.commit();
        connection.setAutoCommit(true); // an extension counts when it is committed
        return done;
    }

    private static String select(Connection connection, String sql, String... values) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int i = 0; i < values.length; i++) {
                statement.setString(i + 1, values[i]);
            }
            try (ResultSet row = statement.executeQuery()) {
                row.next();
                return row.getString(1);
            }
        }
    }
}
// [end cron]
