// [once]
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;

final class PayOnce {
    /** False: it is done already for today. After an exception roll back. */
    static boolean pay(Connection connection) throws SQLException {
        connection.setAutoCommit(false);
        try (Statement statement = connection.createStatement()) {
            boolean first;
            String once = "SELECT once('daily-gift:' || (now() AT TIME ZONE 'Europe/Berlin')::date)";
            try (ResultSet row = statement.executeQuery(once)) {
                row.next();
                first = row.getBoolean(1);
            }
            if (first) {
                statement.executeUpdate("UPDATE gift SET coins = coins + 100");
            }
            connection.commit();
            return first;
        }
    }
}
// [end once]
