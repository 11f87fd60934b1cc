import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Types;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import org.postgresql.PGConnection;
import org.postgresql.util.PGInterval;
import org.postgresql.util.PGobject;
import org.postgresql.util.PSQLException;

final class JdbcClient {
    private static final Duration TTL = Duration.ofSeconds(30);
    private final Clients clients;
    private final Recipes recipes;

    JdbcClient(String version) throws Exception {
        clients = new Clients("jdbc", version);
        recipes = new Recipes(clients);
    }

    boolean run() throws Exception {
        Map<String, Clients.Scenario> plays = new HashMap<>();
        plays.put("grant", this::grant);
        plays.put("heartbeat", this::heartbeat);
        plays.put("fenced_transaction", this::fencedTransaction);
        plays.put("fenced_column", this::fencedColumn);
        plays.put("refused_write", this::refusedWrite);
        plays.put("refused_commit", this::refusedCommit);
        plays.put("once", this::once);
        plays.put("checkpoint", this::checkpoint);
        plays.put("wait_timeout", this::waitTimeout);
        plays.put("lost_connection", this::lostConnection);
        plays.put("migration", () -> "the driver has no migrations");
        return clients.run(plays);
    }

    private Connection connect(String more) throws SQLException {
        return DriverManager.getConnection(clients.url() + more);
    }

    private Connection connect() throws SQLException {
        return connect("");
    }

    private static long granted(Connection connection) throws SQLException {
        Long token = Leases.acquire(connection, Clients.LEASE, "node-1", TTL);
        Clients.check(token != null, "not granted");
        return token;
    }

    /** Begins a transaction that writes under the token. */
    private static void fenced(Connection connection, long token) throws SQLException {
        connection.setAutoCommit(false);
        Leases.fence(connection, Clients.LEASE, token);
    }

    private static Object select(Connection connection, String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int i = 0; i < values.length; i++) {
                statement.setObject(i + 1, values[i]);
            }
            try (ResultSet row = statement.executeQuery()) {
                row.next();
                return row.getObject(1);
            }
        }
    }

    private static int update(Connection connection, String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int i = 0; i < values.length; i++) {
                statement.setObject(i + 1, values[i]);
            }
            return statement.executeUpdate();
        }
    }

    private static PSQLException refused(String state, Clients.Action action) throws Exception {
        PSQLException refused = Clients.thrown(PSQLException.class, action);
        Clients.same("SQLSTATE", refused.getSQLState(), state);
        return refused;
    }

    private String grant() throws Exception {
        try (Connection connection = connect(); Connection untyped = connect("&stringtype=unspecified")) {
            long token = granted(connection);
            String shown = clients.admin("SELECT token FROM lease_status WHERE name = 'daily-reward'");
            Clients.same("token", Long.toString(token), shown);
            Clients.check(token > 9_007_199_254_730_000L, "the token is not above the floor");
            Clients.same("held", Leases.acquire(connection, Clients.LEASE, "node-2", TTL), null);

            String natural = "SELECT lease_acquire(?, ?, ?)";
            refused("42883", () -> select(connection, natural, "a", "b", "30 seconds"));
            refused("07006", () -> select(connection, natural, "a", "b", TTL));
            refused("42883", () -> select(connection, natural, "a", "b", 30));
            refused("22023", () -> select(connection, natural, "a", "b", new PGInterval("30 s"))); // it reads that as 0
            Object half = select(connection, natural, "a", "b", new PGInterval("30 seconds"));
            Clients.check(half != null, "PGInterval");
            Clients.check(select(untyped, natural, "c", "d", "30 seconds") != null, "stringtype=unspecified");
            Clients.check(select(connection, "SELECT lease_acquire(?, ?, ?::interval)", "e", "f", "30 s") != null, "cast");
            try (PreparedStatement other = connection.prepareStatement(natural)) {
                other.setString(1, "g");
                other.setString(2, "h");
                other.setObject(3, "30 s", Types.OTHER);
                Clients.check(other.executeQuery().next(), "Types.OTHER");
            }
            Clients.same("highest bigint", select(connection, "SELECT ?::bigint", Long.MAX_VALUE), Long.MAX_VALUE);
            Clients.same("its text", select(connection, "SELECT ?::text", Long.MAX_VALUE), "9223372036854775807");
            return null;
        }
    }

    private String heartbeat() throws Exception {
        Duration ttl = Duration.ofMillis(600);
        try (Connection connection = connect()) {
            long asked = System.nanoTime();
            long token = Leases.acquire(connection, Clients.LEASE, "node-1", ttl);
            try (Heartbeat heartbeat = new Heartbeat(clients.url(), Clients.LEASE, token, ttl, asked)) {
                // This connection is busy for longer than the time to live.
                select(connection, "SELECT pg_sleep(1.5)");
                Object current = select(connection, "SELECT lease_is_current(?, ?)", Clients.LEASE, token);
                Clients.same("extended", current, true);
                Clients.check(heartbeat.isMine(), "the heartbeat gave up a lease that it had");

                // No answer comes any more: its own deadline ends it.
                connection.setAutoCommit(false);
                connection.createStatement().execute("LOCK TABLE lock_ext.lease");
                Clients.eventually("no deadline of its own", () -> !heartbeat.isMine());
                connection.rollback();
            }
            // And so does the loss of the lease, however far the deadline is.
            clients.takeOver();
            long late = System.nanoTime() + Duration.ofMinutes(10).toNanos();
            try (Heartbeat heartbeat = new Heartbeat(clients.url(), Clients.LEASE, token, ttl, late)) {
                Clients.eventually("the loss was not noticed", () -> !heartbeat.isMine());
            }
        }
        recipes.leader();
        return null;
    }

    private String fencedTransaction() throws Exception {
        try (Connection connection = connect()) {
            refused("LX003", () -> update(connection, Clients.PAY));
            Clients.thrown(IllegalStateException.class, () -> Leases.fence(connection, Clients.LEASE, 1));
            fenced(connection, granted(connection));
            Clients.same("paid", update(connection, Clients.PAY), 3);
            update(connection, "INSERT INTO player VALUES (?, ?)", 4, 50);
            connection.commit();
            Clients.same("coins", clients.admin(Clients.COINS), "350");
            return null;
        }
    }

    private String fencedColumn() throws Exception {
        String save = "INSERT INTO entry (id, amount, token) VALUES (?, ?, ?)"
                + " ON CONFLICT (id) DO UPDATE SET amount = excluded.amount, token = excluded.token";
        try (Connection connection = connect()) {
            long token = granted(connection);
            update(connection, save, 1, 100, token);
            update(connection, save, 1, 200, token);
            Clients.same("token", select(connection, "SELECT token FROM entry"), token);
            clients.takeOver();
            refused("LX001", () -> update(connection, save, 1, 300, token));
            Clients.same("amount", clients.admin("SELECT amount FROM entry"), "200");
            return null;
        }
    }

    private String refusedWrite() throws Exception {
        // Statements that the server has prepared, and savepoints that the driver sets, change nothing.
        for (String driver : new String[] {"", "&prepareThreshold=1", "&autosave=always", "&autosave=conservative"}) {
            clients.reset();
            try (Connection connection = connect(driver)) {
                long token = granted(connection);
                fenced(connection, token);
                update(connection, Clients.PAY);
                connection.commit();
                int attempts = 0;
                PSQLException refused;
                do {
                    attempts++;
                    fenced(connection, token);
                    update(connection, Clients.PAY);
                    clients.takeOver();
                    refused = refused("LX001", () -> update(connection, Clients.PAY));
                    if (driver.endsWith("always")) { // the transaction goes on, with its first payment
                        refused("LX001", connection::commit);
                    } else {
                        connection.commit(); // is a rollback, of which the driver says nothing
                    }
                    connection.rollback();
                } while (Errors.isRetryable(refused) && attempts < 3);
                Clients.same("attempts", attempts, 1);
                Clients.same("table", refused.getServerErrorMessage().getTable(), "player");
                Clients.check(refused.getServerErrorMessage().getDetail().contains(Clients.LEASE), "detail");
                Clients.same("coins", clients.admin(Clients.COINS), "300");
            }
        }
        return null;
    }

    private String refusedCommit() throws Exception {
        try (Connection connection = connect()) {
            fenced(connection, granted(connection));
            update(connection, Clients.PAY);
            clients.takeOver();
            PSQLException refused = refused("LX001", connection::commit);
            Clients.check(Errors.isSuperseded(refused) && !Errors.isRetryable(refused), "not told apart");
            Clients.same("coins", clients.admin(Clients.COINS), "0");

            // setAutoCommit(true) is a COMMIT, and is refused like one.
            clients.reset();
            connection.setAutoCommit(true);
            fenced(connection, granted(connection));
            update(connection, Clients.PAY);
            clients.takeOver();
            refused("LX001", () -> connection.setAutoCommit(true));
            Clients.same("coins", clients.admin(Clients.COINS), "0");
            return null;
        }
    }

    private String once() throws Exception {
        try (Connection connection = connect()) {
            connection.setAutoCommit(false);
            Clients.same("first", select(connection, "SELECT once(?)", "mail:1"), true);
            connection.rollback();
            Clients.same("after a rollback", select(connection, "SELECT once(?)", "mail:1"), true);
            connection.commit();
            Clients.same("again", select(connection, "SELECT once(?)", "mail:1"), false);
            Clients.same("once more", clients.admin("SELECT once('mail:1')"), "f");
        }
        recipes.once();
        return null;
    }

    private String checkpoint() throws Exception {
        try (Connection connection = connect()) {
            long token = granted(connection);
            fenced(connection, token);
            String save = "SELECT lease_checkpoint(?, ?, ?)";
            PGobject state = new PGobject();
            state.setType("jsonb");
            state.setValue("{\"after\": 9223372036854775807}");
            select(connection, save, Clients.LEASE, token, state);
            connection.commit();
            Object saved = select(connection, "SELECT lease_checkpoint(?)", Clients.LEASE);
            Clients.same("checkpoint", saved, state);
            refused("42883", () -> select(connection, save, Clients.LEASE, token, "{}")); // a string needs ?::jsonb
        }
        recipes.job();
        recipes.frozenPredecessor();
        recipes.lostJob();
        return null;
    }

    private String waitTimeout() throws Exception {
        clients.takeOver();
        String wait = "SELECT lease_acquire('daily-reward', 'node-1', '30 s', wait => '1 min')";
        try (Connection connection = connect(); PreparedStatement waiting = connection.prepareStatement(wait)) {
            waiting.setQueryTimeout(1); // the driver sends a cancel
            refused("57014", waiting::executeQuery);
            Clients.same("waiters", clients.admin("SELECT count(*) FROM lease_waiter"), "0");
            Clients.same("the connection afterwards", select(connection, "SELECT 7"), 7);
            return null;
        }
    }

    private String lostConnection() throws Exception {
        long token;
        try (Connection connection = connect()) {
            token = granted(connection);
            fenced(connection, token);
            update(connection, Clients.PAY);
            int pid = connection.unwrap(PGConnection.class).getBackendPID();
            clients.admin("SELECT pg_terminate_backend(" + pid + ", 5000)");
            refused("57P01", () -> update(connection, Clients.PAY));
            Clients.check(connection.isClosed(), "the connection is open");
            Clients.same("coins", clients.admin(Clients.COINS), "0");
        }
        try (Connection connection = connect()) {
            fenced(connection, token);
            update(connection, Clients.PAY);
            connection.commit();
            Clients.same("coins", clients.admin(Clients.COINS), "300");
        }
        return null;
    }
}
