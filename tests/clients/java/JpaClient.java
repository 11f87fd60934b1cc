import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import javax.persistence.EntityManager;
import javax.persistence.EntityManagerFactory;
import javax.persistence.OptimisticLockException;
import javax.persistence.Persistence;
import javax.persistence.PersistenceException;
import javax.persistence.PessimisticLockException;
import javax.persistence.Query;
import javax.persistence.RollbackException;

/** JPA, with EclipseLink. */
final class JpaClient {
    private final Clients clients;
    private final EntityManagerFactory factory;

    JpaClient(String version) throws Exception {
        clients = new Clients("eclipselink", version);
        factory = Persistence.createEntityManagerFactory("rewards", Map.of("javax.persistence.jdbc.url", clients.url()));
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
        plays.put("migration", () -> "JPA makes tables, and no triggers");
        return clients.run(plays);
    }

    private Object single(EntityManager manager, String sql, Object... values) {
        Query query = manager.createNativeQuery(sql);
        for (int i = 0; i < values.length; i++) {
            query.setParameter(i + 1, values[i]);
        }
        return query.getSingleResult();
    }

    /** One call, in a transaction of its own. */
    private Object call(String sql, Object... values) {
        EntityManager manager = factory.createEntityManager();
        try {
            manager.getTransaction().begin();
            Object result = single(manager, sql, values);
            manager.getTransaction().commit();
            return result;
        } finally {
            manager.close();
        }
    }

    private Long acquire(String node, double seconds) {
        return (Long) call("SELECT lease_acquire(?, ?, make_interval(secs => ?))", Clients.LEASE, node, seconds);
    }

    private static void pay(EntityManager manager) {
        for (Player player : manager.createQuery("SELECT p FROM Player p", Player.class).getResultList()) {
            player.coins += 100;
        }
    }

    private void fenced(long token, Clients.Action before, Clients.Action after) {
        Fenced.transaction(factory, Clients.LEASE, token, manager -> {
            unchecked(before);
            pay(manager);
            manager.flush();
            unchecked(after);
        });
    }

    private static void unchecked(Clients.Action action) {
        try {
            action.run();
        } catch (Exception failure) {
            throw new IllegalStateException(failure);
        }
    }

    private void terminate(EntityManager manager) {
        Object pid = single(manager, "SELECT pg_backend_pid()");
        unchecked(() -> clients.admin("SELECT pg_terminate_backend(" + pid + ", 5000)"));
    }

    private static void superseded(Throwable refused) {
        Clients.check(Errors.isSuperseded(refused) && !Errors.isRetryable(refused), refused.toString());
        for (Throwable cause = refused; cause != null; cause = cause.getCause()) {
            boolean conflict = cause instanceof OptimisticLockException || cause instanceof PessimisticLockException;
            Clients.check(!conflict, "taken for a conflict");
        }
    }

    private static void nothing() {
    }

    private String grant() throws Exception {
        long token = acquire("node-1", 30);
        String shown = clients.admin("SELECT token FROM lease_status WHERE name = 'daily-reward'");
        Clients.same("token", Long.toString(token), shown);
        Clients.check(token > 9_007_199_254_730_000L, "the token is not above the floor");
        Clients.same("held by another", acquire("node-2", 30), null);
        PersistenceException text = Clients.thrown(PersistenceException.class, () ->
                call("SELECT lease_acquire(?, ?, ?)", "a", "b", "30 seconds"));
        Clients.same("a string for an interval", Errors.sqlState(text), "42883");
        Clients.same("highest bigint", call("SELECT ?", Long.MAX_VALUE), Long.MAX_VALUE);
        return null;
    }

    private String heartbeat() throws Exception {
        Duration ttl = Duration.ofMillis(600);
        long asked = System.nanoTime();
        long token = acquire("node-1", 0.6);
        try (Heartbeat heartbeat = new Heartbeat(clients.url(), Clients.LEASE, token, ttl, asked)) {
            call("SELECT pg_sleep(1.5)");
            fenced(token, JpaClient::nothing, JpaClient::nothing);
            Clients.check(heartbeat.isMine(), "the heartbeat gave up a lease that it had");
            clients.takeOver();
            Clients.eventually("the loss was not noticed", () -> !heartbeat.isMine());
        }
        return null;
    }

    private String fencedTransaction() throws Exception {
        EntityManager unfenced = factory.createEntityManager();
        unfenced.getTransaction().begin();
        pay(unfenced);
        RollbackException refused = Clients.thrown(RollbackException.class, unfenced.getTransaction()::commit);
        Clients.same("without a token", Errors.sqlState(refused), "LX003");
        unfenced.close();

        Fenced.transaction(factory, Clients.LEASE, acquire("node-1", 30), manager -> {
            manager.persist(new Player(4, 50));
            pay(manager);
        });
        Clients.same("coins", clients.admin(Clients.COINS), "450");
        return null;
    }

    private void save(int amount, long token) {
        EntityManager manager = factory.createEntityManager();
        try {
            manager.getTransaction().begin();
            manager.merge(new Entry(1, amount, token));
            manager.getTransaction().commit();
        } finally {
            manager.close();
        }
    }

    private String fencedColumn() throws Exception {
        long first = acquire("node-1", 30);
        save(100, first);
        // Only columns that changed are sent, so the same token a second time is no token.
        RollbackException same = Clients.thrown(RollbackException.class, () -> save(200, first));
        Clients.same("the token as it was", Errors.sqlState(same), "LX003");
        clients.admin("SELECT lease_force_release('daily-reward')");
        long second = acquire("node-2", 30);
        save(300, second);
        superseded(Clients.thrown(RollbackException.class, () -> save(400, first)));
        Clients.same("entry", clients.admin("SELECT amount, token FROM entry"), "300|" + second);

        // By transaction it always goes, and the fence stamps the column.
        Fenced.transaction(factory, Clients.LEASE, second, manager -> manager.find(Entry.class, 1).amount = 500);
        Clients.same("entry", clients.admin("SELECT amount, token FROM entry"), "500|" + second);
        return null;
    }

    private String refusedWrite() throws Exception {
        long token = acquire("node-1", 30);
        superseded(Clients.thrown(PersistenceException.class, () ->
                fenced(token, clients::takeOver, JpaClient::nothing)));
        // Without flush() the write, and so its refusal, comes with the commit.
        clients.reset();
        long late = acquire("node-1", 30);
        superseded(Clients.thrown(RollbackException.class, () ->
                Fenced.transaction(factory, Clients.LEASE, late, manager -> {
                    pay(manager);
                    unchecked(clients::takeOver);
                })));
        Clients.same("coins", clients.admin(Clients.COINS), "0");
        return null;
    }

    private String refusedCommit() throws Exception {
        long token = acquire("node-1", 30);
        superseded(Clients.thrown(RollbackException.class, () ->
                fenced(token, JpaClient::nothing, clients::takeOver)));
        Clients.same("coins", clients.admin(Clients.COINS), "0");
        return null;
    }

    private String once() throws Exception {
        EntityManager manager = factory.createEntityManager();
        manager.getTransaction().begin();
        Clients.same("first", single(manager, "SELECT once('mail:1')"), true);
        manager.getTransaction().rollback();
        manager.close();
        Clients.same("after a rollback", call("SELECT once('mail:1')"), true);
        Clients.same("again", call("SELECT once('mail:1')"), false);
        return null;
    }

    private String checkpoint() throws Exception {
        String save = "SELECT lease_checkpoint(?, ?, CAST(? AS jsonb))";
        long token = acquire("node-1", 30);
        Fenced.transaction(factory, Clients.LEASE, token, manager -> {
            pay(manager);
            single(manager, save, Clients.LEASE, token, "{\"after\": 1}");
        });
        // The crash: neither the work nor its checkpoint is there.
        Clients.thrown(RollbackException.class, () ->
                Fenced.transaction(factory, Clients.LEASE, token, manager -> {
                    single(manager, save, Clients.LEASE, token, "{\"after\": 2}");
                    pay(manager);
                    terminate(manager);
                }));
        clients.admin("SELECT lease_force_release('daily-reward')");
        String read = "SELECT CAST(lease_checkpoint('daily-reward') AS text)";
        Fenced.transaction(factory, Clients.LEASE, acquire("node-2", 30), manager ->
                Clients.same("checkpoint", single(manager, read), "{\"after\": 1}"));
        Clients.same("coins", clients.admin(Clients.COINS), "300");
        return null;
    }

    private String waitTimeout() throws Exception {
        clients.takeOver();
        EntityManager manager = factory.createEntityManager();
        Query wait = manager.createNativeQuery("SELECT lease_acquire('daily-reward', 'n', '30 s', wait => '1 min')");
        wait.setHint("javax.persistence.query.timeout", 1000);
        Exception timeout = Clients.thrown(PersistenceException.class, wait::getSingleResult);
        Clients.same("timeout", Errors.sqlState(timeout), "57014");
        Clients.same("waiters", clients.admin("SELECT count(*) FROM lease_waiter"), "0");
        Clients.same("the connection afterwards", single(manager, "SELECT 7"), 7);
        manager.close();
        return null;
    }

    private String lostConnection() throws Exception {
        long token = acquire("node-1", 30);
        PersistenceException lost = Clients.thrown(PersistenceException.class, () ->
                Fenced.transaction(factory, Clients.LEASE, token, manager -> {
                    pay(manager);
                    manager.flush();
                    terminate(manager);
                    pay(manager);
                    manager.flush();
                }));
        Clients.same("SQLSTATE", Errors.sqlState(lost), "57P01");
        Clients.same("coins", clients.admin(Clients.COINS), "0");
        fenced(token, JpaClient::nothing, JpaClient::nothing);
        Clients.same("coins", clients.admin(Clients.COINS), "300");
        return null;
    }
}
