// [leases]
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;

final class Leases {
    /** On a connection in autocommit. Null: somebody else has it, or it is completed. */
    static Long acquire(Connection connection, String name, String node, Duration ttl) throws SQLException {
        String acquire = "SELECT lease_acquire(?, ?, make_interval(secs => ?))";
        try (PreparedStatement call = connection.prepareStatement(acquire)) {
            call.setString(1, name);
            call.setString(2, node);
            call.setDouble(3, ttl.toMillis() / 1000.0);
            return only(call, Long.class);
        }
    }

    /** On a connection in autocommit. False: the lease is lost. */
    static boolean extend(Connection connection, String name, long token) throws SQLException {
        return call(connection, "SELECT lease_extend(?, ?) IS NOT NULL", name, token);
    }

    /** On a connection in autocommit. */
    static boolean release(Connection connection, String name, long token) throws SQLException {
        return call(connection, "SELECT lease_release(?, ?)", name, token);
    }

    /** At the beginning of a transaction: the rest of it writes under the token. */
    static void fence(Connection connection, String name, long token) throws SQLException {
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
