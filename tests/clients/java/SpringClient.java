import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Supplier;
import org.postgresql.ds.PGSimpleDataSource;
import org.springframework.dao.ConcurrencyFailureException;
import org.springframework.dao.DataAccessResourceFailureException;
import org.springframework.dao.TransientDataAccessException;
import org.springframework.jdbc.BadSqlGrammarException;
import org.springframework.jdbc.UncategorizedSQLException;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.transaction.TransactionSystemException;
import org.springframework.transaction.support.TransactionTemplate;

/** JdbcTemplate and TransactionTemplate, with a connection for each transaction. */
final class SpringClient {
    private final Clients clients;
    private final JdbcTemplate jdbc;
    private final TransactionTemplate transaction;

    SpringClient(String version) throws Exception {
        clients = new Clients("spring-jdbc", version);
        PGSimpleDataSource source = new PGSimpleDataSource();
        source.setUrl(clients.url());
        jdbc = new JdbcTemplate(source);
        transaction = new TransactionTemplate(new DataSourceTransactionManager(source));
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
        plays.put("migration", () -> "Flyway and Liquibase are not packaged");
        return clients.run(plays);
    }

    private Long acquire(String node, double seconds) {
        String acquire = "SELECT lease_acquire(?, ?, make_interval(secs => ?))";
        return jdbc.queryForObject(acquire, Long.class, Clients.LEASE, node, seconds);
    }

    private <T> T fenced(long token, Supplier<T> work) {
        return transaction.execute(status -> {
            jdbc.queryForList("SELECT lease_fence(?, ?)", Clients.LEASE, token);
            return work.get();
        });
    }

    private int pay() {
        return jdbc.update(Clients.PAY);
    }

    private void takeOver() {
        unchecked(clients::takeOver);
    }

    private static void unchecked(Clients.Action action) {
        try {
            action.run();
        } catch (Exception failure) {
            throw new IllegalStateException(failure);
        }
    }

    private void terminate() {
        int pid = jdbc.queryForObject("SELECT pg_backend_pid()", Integer.class);
        unchecked(() -> clients.admin("SELECT pg_terminate_backend(" + pid + ", 5000)"));
    }

    /** Not one of those that are worth a retry. */
    private static void superseded(Exception refused) {
        Clients.check(Errors.isSuperseded(refused) && !Errors.isRetryable(refused), refused.toString());
        Clients.check(!(refused instanceof TransientDataAccessException), "taken for a transient error");
        Clients.check(!(refused instanceof ConcurrencyFailureException), "taken for a conflict");
    }

    private String grant() throws Exception {
        long token = acquire("node-1", 30);
        String shown = clients.admin("SELECT token FROM lease_status WHERE name = 'daily-reward'");
        Clients.same("token", Long.toString(token), shown);
        Clients.check(token > 9_007_199_254_730_000L, "the token is not above the floor");
        Clients.same("held by another", acquire("node-2", 30), null);
        Clients.thrown(BadSqlGrammarException.class, () ->
                jdbc.queryForObject("SELECT lease_acquire(?, ?, ?)", Long.class, "a", "b", "30 seconds"));
        Long highest = jdbc.queryForObject("SELECT ?::bigint", Long.class, Long.MAX_VALUE);
        Clients.same("highest bigint", highest, Long.MAX_VALUE);
        return null;
    }

    private String heartbeat() throws Exception {
        Duration ttl = Duration.ofMillis(600);
        long asked = System.nanoTime();
        long token = acquire("node-1", 0.6);
        try (Heartbeat heartbeat = new Heartbeat(clients.url(), Clients.LEASE, token, ttl, asked)) {
            fenced(token, () -> jdbc.queryForList("SELECT pg_sleep(1.5)"));
            fenced(token, this::pay);
            Clients.check(heartbeat.isMine(), "the heartbeat gave up a lease that it had");
            takeOver();
            Clients.eventually("the loss was not noticed", () -> !heartbeat.isMine());
        }
        return null;
    }

    private String fencedTransaction() throws Exception {
        Exception unfenced = Clients.thrown(UncategorizedSQLException.class, this::pay);
        Clients.same("without a token", Errors.sqlState(unfenced), "LX003");
        fenced(acquire("node-1", 30), () -> jdbc.update("INSERT INTO player VALUES (?, ?)", 4, 50) + pay());
        Clients.same("coins", clients.admin(Clients.COINS), "450");
        return null;
    }

    private String fencedColumn() throws Exception {
        long token = acquire("node-1", 30);
        jdbc.update("INSERT INTO entry VALUES (?, ?, ?)", 1, 100, token);
        String save = "UPDATE entry SET amount = ?, token = ? WHERE id = ?";
        jdbc.update(save, 200, token, 1);
        Clients.same("token", jdbc.queryForObject("SELECT token FROM entry", Long.class), token);
        takeOver();
        superseded(Clients.thrown(UncategorizedSQLException.class, () -> jdbc.update(save, 300, token, 1)));
        Clients.same("amount", clients.admin("SELECT amount FROM entry"), "200");
        return null;
    }

    private String refusedWrite() throws Exception {
        long token = acquire("node-1", 30);
        superseded(Clients.thrown(UncategorizedSQLException.class, () -> fenced(token, () -> {
            takeOver();
            return pay();
        })));
        Clients.same("coins", clients.admin(Clients.COINS), "0");
        return null;
    }

    private String refusedCommit() throws Exception {
        long token = acquire("node-1", 30);
        superseded(Clients.thrown(TransactionSystemException.class, () -> fenced(token, () -> {
            int paid = pay();
            takeOver();
            return paid;
        })));
        Clients.same("coins", clients.admin(Clients.COINS), "0");
        return null;
    }

    private String once() throws Exception {
        String once = "SELECT once('mail:1')";
        boolean rolledBack = transaction.execute(status -> {
            status.setRollbackOnly();
            return jdbc.queryForObject(once, Boolean.class);
        });
        boolean first = transaction.execute(status -> jdbc.queryForObject(once, Boolean.class));
        boolean second = transaction.execute(status -> jdbc.queryForObject(once, Boolean.class));
        Clients.check(rolledBack && first && !second, "rolled back, committed, again: "
                + rolledBack + " " + first + " " + second);
        Clients.same("once more", clients.admin(once), "f");
        return null;
    }

    private String checkpoint() throws Exception {
        String save = "SELECT lease_checkpoint(?, ?, ?::jsonb)";
        long token = acquire("node-1", 30);
        fenced(token, () -> jdbc.queryForList(save, Clients.LEASE, token, "{\"after\": 1}").size() + pay());
        // The crash: neither the work nor its checkpoint is there.
        Clients.thrown(TransactionSystemException.class, () ->
                fenced(token, () -> {
                    jdbc.queryForList(save, Clients.LEASE, token, "{\"after\": 2}");
                    pay();
                    terminate();
                    return null;
                }));
        clients.admin("SELECT lease_force_release('daily-reward')");
        String read = "SELECT lease_checkpoint('daily-reward')::text";
        String found = fenced(acquire("node-2", 30), () -> jdbc.queryForObject(read, String.class));
        Clients.same("checkpoint", found, "{\"after\": 1}");
        Clients.same("coins", clients.admin(Clients.COINS), "300");
        return null;
    }

    private String waitTimeout() throws Exception {
        takeOver();
        String wait = "SELECT lease_acquire('daily-reward', 'node-1', '30 s', wait => '1 min')";
        JdbcTemplate limited = new JdbcTemplate(jdbc.getDataSource());
        limited.setQueryTimeout(1);
        transaction.execute(status -> {
            Object savepoint = status.createSavepoint();
            unchecked(() -> {
                Exception timeout =
                        Clients.thrown(DataAccessResourceFailureException.class, () -> limited.queryForList(wait));
                Clients.same("timeout", Errors.sqlState(timeout), "57014");
            });
            status.rollbackToSavepoint(savepoint);
            unchecked(() -> Clients.same("waiters", clients.admin("SELECT count(*) FROM lease_waiter"), "0"));
            return jdbc.queryForObject("SELECT 7", Integer.class); // on the same connection
        });
        return null;
    }

    private String lostConnection() throws Exception {
        long token = acquire("node-1", 30);
        TransactionSystemException lost = Clients.thrown(TransactionSystemException.class, () ->
                fenced(token, () -> {
                    pay();
                    terminate();
                    return pay();
                }));
        // The rollback fails as well, and what it throws hides the first.
        Clients.same("SQLSTATE", Errors.sqlState(lost), "08003");
        Clients.same("SQLSTATE of the write", Errors.sqlState(lost.getApplicationException()), "57P01");
        Clients.same("coins", clients.admin(Clients.COINS), "0");
        fenced(token, this::pay);
        Clients.same("coins", clients.admin(Clients.COINS), "300");
        return null;
    }
}
