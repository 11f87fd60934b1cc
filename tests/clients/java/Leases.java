// [leases]
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Properties;

final class Leases {
    /** Waits for an answer for a third of the time to live: on a dead network the work ends before the lease does. */
    static Connection connect(String url, Duration ttl) throws SQLException {
        String seconds = Long.toString(Math.max(1, ttl.toSeconds() / 3)); // 0 would be for ever
        Properties bounds = new Properties();
        bounds.setProperty("connectTimeout", seconds);
        bounds.setProperty("socketTimeout", seconds);
        return DriverManager.getConnection(url, bounds);
    }

    /** For people who read lease_status; it proves nothing. */
    static String node() throws UnknownHostException {
        return InetAddress.getLocalHost().getHostName() + ":" + ProcessHandle.current().pid();
    }

    /** On a connection in autocommit. Null: somebody else has it, or it is completed. */
    static Long acquire(Connection connection, String name, String node, Duration ttl) throws SQLException {
        Long token;
        String acquire = "SELECT lease_acquire(?, ?, make_interval(secs => ?))";
        try (PreparedStatement call = connection.prepareStatement(acquire)) {
            call.setString(1, name);
            call.setString(2, node);
            call.setDouble(3, ttl.toMillis() / 1000.0);
            token = only(call, Long.class);
        }
        if (token != null) { // a predecessor that is frozen in a transaction would keep its row locks
            call(connection, "SELECT count(*) >= 0 FROM lease_evict(?, ?)", name, token);
        }
        return token;
    }

    /** On a connection in autocommit. False: the lease is lost. */
    static boolean extend(Connection connection, String name, long token) throws SQLException {
        return call(connection, "SELECT lease_extend(?, ?) IS NOT NULL", name, token);
    }

    /** On a connection in autocommit. */
    static boolean release(Connection connection, String name, long token) throws SQLException {
        return call(connection, "SELECT lease_release(?, ?)", name, token);
    }

    /** At the beginning of a transaction: the rest of it writes under the token, and commits under no later one. */
    static void fence(Connection connection, String name, long token) throws SQLException {
        if (connection.getAutoCommit()) { // the server would say nothing, and fence this one call
            throw new IllegalStateException("lease_fence in autocommit protects nothing: setAutoCommit(false)");
        }
        call(connection, "SELECT lease_fence(?, ?) IS NOT NULL", name, token);
    }

    private static boolean call(Connection connection, String sql, String name, long token) throws SQLException {
        try (PreparedStatement call = connection.prepareStatement(sql)) {
            call.setString(1, name);
            call.setLong(2, token);
            return only(call, Boolean.class);
        }
    }

    private static <T> T only(PreparedStatement call, Class<T> type) throws SQLException {
        try (ResultSet row = call.executeQuery()) {
            row.next();
            return row.getObject(1, type); // getLong would make 0 of NULL
        }
    }
}
// [end leases]
