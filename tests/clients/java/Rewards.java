// [cron]
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;

final class Rewards {
    private static final Duration TTL = Duration.ofMinutes(1); // longer than one day's payment takes

    /** Runs on every node, once a day: pays each player for today, and for the days that were missed. */
    static void pay(String url, String node) throws SQLException {
        try (Connection connection = DriverManager.getConnection(url)) { // its close rolls back what has failed
            long deadline = System.nanoTime() + TTL.toNanos();
            Long token = Leases.acquire(connection, "daily-reward", node, TTL);
            if (token == null) {
                return; // somebody is at it, or it is done for today
            }
            while (System.nanoTime() - deadline < 0) {
                connection.setAutoCommit(false);
                boolean done = payDay(connection, token);
                connection.commit();
                connection.setAutoCommit(true);
                long asked = System.nanoTime();
                if (done || !Leases.extend(connection, "daily-reward", token)) {
                    return; // lost: whoever has it goes on from the checkpoint
                }
                deadline = asked + TTL.toNanos();
            }
        }
    }

    private static boolean payDay(Connection connection, long token) throws SQLException {
        Leases.fence(connection, "daily-reward", token);
        String next = "SELECT day::text, day - current_date"
                + " FROM coalesce((lease_checkpoint('daily-reward') ->> 'paid')::date + 1, current_date) AS day";
        try (Statement statement = connection.createStatement(); ResultSet row = statement.executeQuery(next)) {
            row.next();
            String day = row.getString(1);
            int ahead = row.getInt(2);
            if (ahead <= 0) {
                statement.executeUpdate("UPDATE player SET coins = coins + 100");
                String save = "SELECT lease_checkpoint('daily-reward', ?, jsonb_build_object('paid', ?::text))";
                try (PreparedStatement checkpoint = connection.prepareStatement(save)) {
                    checkpoint.setLong(1, token);
                    checkpoint.setString(2, day);
                    checkpoint.execute();
                }
            }
            if (ahead >= 0) {
                String done = "SELECT lease_complete('daily-reward', ?, until => current_date + 1)";
                try (PreparedStatement complete = connection.prepareStatement(done)) {
                    complete.setLong(1, token);
                    complete.execute();
                }
            }
            return ahead >= 0;
        }
    }
}
// [end cron]
