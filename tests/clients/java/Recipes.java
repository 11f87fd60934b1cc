import java.io.IOException;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.TimeZone;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import org.postgresql.util.PSQLException;

/** The programs of the recipe page, frozen, superseded and cut off. */
final class Recipes {
    private static final String STATE = "SELECT state FROM lease_status WHERE name = 'daily-reward'";
    private static final String LEADER = "SELECT holder FROM lease_status WHERE name = 'scheduler' AND state = 'held'";
    private static final String BERLIN = "(now() AT TIME ZONE 'Europe/Berlin')::date";
    private final Clients clients;

    Recipes(Clients clients) {
        this.clients = clients;
    }

    /** Nobody has the job, and it was done until so many days ago. */
    private void daysAgo(int days) throws Exception {
        clients.reset();
        clients.admin("SELECT lease_checkpoint(name, token, jsonb_build_object('paid', " + BERLIN + " - " + days + ")),"
                + " lease_release(name, token) FROM (SELECT 'daily-reward' AS name,"
                + " lease_acquire('daily-reward', 'yesterday', '1 s') AS token) AS lease");
    }

    private String pay(String node) throws SQLException {
        return Rewards.pay(clients.url(), node);
    }

    private CompletableFuture<String> paying(String node) {
        return CompletableFuture.supplyAsync(() -> {
            try {
                return pay(node);
            } catch (SQLException failure) {
                throw new IllegalStateException(failure);
            }
        });
    }

    private void coins(String want) throws Exception {
        Clients.same("coins", clients.admin("SELECT string_agg(coins::text, ' ') FROM player"), want);
    }

    private static void begins(String got, String want) {
        Clients.check(got.startsWith(want), got + ", and not " + want);
    }

    /** Two days were missed, and the job dies in the third payment. Another node pays what is left, once. */
    void job() throws Exception {
        daysAgo(3);
        clients.admin("CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF OLD.coins = 200"
                + " THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END';"
                + " CREATE TRIGGER die BEFORE UPDATE ON player FOR EACH ROW EXECUTE FUNCTION die()");
        String lost = pay("node-1");
        clients.admin("DROP FUNCTION die CASCADE");
        begins(lost, "lost: token ");
        Clients.check(lost.contains("administrator command"), lost);
        Clients.same("before the expiry", pay("node-2"), "somebody else has it");
        clients.admin("SELECT lease_force_release('daily-reward')");
        // The JVM's own time zone, which the driver makes the session's, and where it is another day, does not move it.
        String elsewhere = clients.admin("SELECT name FROM (VALUES ('Pacific/Kiritimati'), ('Pacific/Pago_Pago'))"
                + " AS zone (name) WHERE (now() AT TIME ZONE name)::date <> " + BERLIN + " LIMIT 1");
        TimeZone before = TimeZone.getDefault();
        try {
            TimeZone.setDefault(TimeZone.getTimeZone(elsewhere));
            Clients.same("after it", pay("node-2"), "done");
        } finally {
            TimeZone.setDefault(before);
        }
        Clients.same("once more", pay("node-2"), "done already for today");
        coins("300 300 300");
        Clients.same("until", clients.admin("SELECT completed_until = (" + BERLIN + " + 1)::timestamp"
                + " AT TIME ZONE 'Europe/Berlin' FROM lease_status WHERE name = 'daily-reward'"), "t");
    }

    /** It has written, has not committed, and does nothing any more: its locks do not stop the next one. */
    void frozenPredecessor() throws Exception {
        daysAgo(1);
        try (Connection frozen = DriverManager.getConnection(clients.url())) {
            long token = Leases.acquire(frozen, Clients.LEASE, "frozen", Duration.ofMinutes(1));
            frozen.setAutoCommit(false);
            Leases.fence(frozen, Clients.LEASE, token);
            try (Statement statement = frozen.createStatement()) {
                statement.executeUpdate(Clients.PAY);
            }
            clients.admin("SELECT lease_force_release('daily-reward')");
            Clients.same("the successor", paying("node-2").get(15, TimeUnit.SECONDS), "done");
            PSQLException evicted = Clients.thrown(PSQLException.class, frozen::commit);
            Clients.check(Errors.mayBeLost(evicted), String.valueOf(evicted.getSQLState()));
        }
        coins("100 100 100");
    }

    /** The lease goes to another node in the middle: that is an answer, and no stack trace. */
    void lostJob() throws Exception {
        daysAgo(1);
        try (Connection blocker = DriverManager.getConnection(clients.url())) {
            blocker.setAutoCommit(false);
            try (Statement statement = blocker.createStatement()) {
                statement.execute("LOCK TABLE player");
            }
            CompletableFuture<String> paying = paying("node-1");
            clients.until("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                    + " AND query LIKE 'UPDATE player%'", "1");
            clients.takeOver();
            blocker.rollback();
            String lost = paying.get(15, TimeUnit.SECONDS);
            begins(lost, "lost: token ");
            Clients.check(lost.contains("was granted later"), lost); // the DETAIL
        }
        coins("0 0 0");
        Clients.same("the other's", clients.admin(STATE), "held");
        Clients.same("a third one", pay("node-3"), "somebody else has it");
    }

    void once() throws Exception {
        clients.admin("INSERT INTO gift VALUES (1, 0); SELECT once_forget('0 s')");
        for (boolean first : new boolean[] {true, false}) {
            try (Connection connection = DriverManager.getConnection(clients.url())) {
                Clients.same("the first one", PayOnce.pay(connection), first);
            }
        }
        Clients.same("coins", clients.admin("SELECT coins FROM gift"), "100");
    }

    void leader() throws Exception {
        Duration ttl = Duration.ofMillis(1500); // so that an answer is waited for for a second
        ConcurrentLinkedQueue<Long> tokens = new ConcurrentLinkedQueue<>();
        Prices prices = new Prices(() -> {
            if (tokens.size() % 2 == 1) {
                throw new IOException("503");
            }
            return tokens.size();
        });
        Thread leading = new Thread(() -> {
            try {
                Leader.run(clients.url(), "node-1", ttl, (connection, token) -> {
                    tokens.add(token);
                    prices.round(connection, token);
                });
            } catch (InterruptedException stopped) {
                return; // as it should
            }
        });
        leading.start();
        // It leads for longer than the time to live, whatever its source says.
        Clients.eventually("it does not work", () -> tokens.size() > 15);
        Clients.same("terms", tokens.stream().distinct().count(), 1L);
        Clients.same("price", clients.admin("SELECT count(*) FROM price"), "1");

        // The lease is taken away, and it comes back under a token of its own.
        long first = tokens.peek();
        clients.admin("SELECT lease_force_release('scheduler')");
        Clients.eventually("it has not come back", () -> tokens.stream().anyMatch(token -> token > first));
        Clients.check(tokens.stream().distinct().count() == 2, "tokens: " + tokens);

        // No answer comes any more on the connection of its work alone. The heartbeat does not keep the lease for it.
        try (Connection blocker = DriverManager.getConnection(clients.url())) {
            blocker.setAutoCommit(false);
            try (Statement statement = blocker.createStatement()) {
                statement.execute("LOCK TABLE price");
            }
            Clients.eventually("a leader that does nothing keeps the lease", () -> clients.admin(
                    "SELECT lease_acquire('scheduler', 'node-2', '30 s') IS NOT NULL").equals("t"));
            blocker.rollback();
        }
        String late = clients.admin("SELECT max(token) = (SELECT max(token) FROM lease_status) FROM price");
        Clients.same("a price under the token of node-2", late, "f");
        clients.admin("SELECT lease_force_release('scheduler')");
        clients.until(LEADER, "node-1");

        // Stopped, it releases the lease.
        leading.interrupt();
        leading.join(20_000);
        String free = clients.admin("SELECT state FROM lease_status WHERE name = 'scheduler'");
        Clients.same("after the interrupt", free, "free");
    }
}
