import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Callable;

/**
 * What the clients have in common: an administrator (psql, so that no driver is tested with itself)
 * and the report, a line for each scenario.
 */
final class Clients {
    /** The lease that most scenarios are about. */
    static final String LEASE = "daily-reward";

    static final String PAY = "UPDATE player SET coins = coins + 100";
    static final String COINS = "SELECT sum(coins) FROM player";

    private static final List<String> SCENARIOS = List.of(
            "grant", "heartbeat", "fenced_transaction", "fenced_column", "refused_write", "refused_commit",
            "once", "checkpoint", "wait_timeout", "lost_connection", "migration");

    /** Gives why it cannot be played, or null; whatever goes wrong is thrown. */
    interface Scenario {
        String play() throws Exception;
    }

    final String name;
    final String database;
    private final String version;

    Clients(String name, String version) throws Exception {
        this.name = name;
        this.version = version;
        this.database = "clients_" + name.replace('-', '_');
        psql("postgres", "-c", "DROP DATABASE IF EXISTS " + database, "-c", "CREATE DATABASE " + database);
        // Tokens begin where a double is about to end.
        psql(database, "-f", System.getProperty("sources") + "/schema.sql",
                "-c", "SELECT lease_raise_token_floor(9007199254730000)");
    }

    boolean run(Map<String, Scenario> plays) throws Exception {
        boolean passed = true;
        for (String scenario : SCENARIOS) {
            reset();
            String line = name + " " + version + " - " + scenario;
            try {
                String skipped = plays.get(scenario).play();
                System.out.println(skipped == null ? "ok " + line : "skip " + line + ": " + skipped);
            } catch (Exception | AssertionError failure) {
                passed = false;
                System.out.println("not ok " + line + ": " + String.valueOf(failure).replace('\n', ' '));
                failure.printStackTrace();
            }
        }
        return passed;
    }

    /** An empty slate: nobody holds the lease, and the tables are as at the beginning. */
    void reset() throws Exception {
        admin("SELECT lease_force_release(name) FROM lease_status;"
                + " SET LOCAL session_replication_role = replica;"
                + " TRUNCATE player, entry, price, gift; INSERT INTO player VALUES (1, 0), (2, 0), (3, 0)");
    }

    String admin(String sql) throws Exception {
        return psql(database, "-c", sql);
    }

    /** Another holder gets the lease. */
    void takeOver() throws Exception {
        admin("SELECT lease_force_release('daily-reward')");
        same("taken over", admin("SELECT lease_acquire('daily-reward', 'other', '30 s') IS NOT NULL"), "t");
    }

    void until(String sql, String want) throws Exception {
        eventually(sql + " is not " + want, () -> admin(sql).equals(want));
    }

    /** Without a socket directory, which this driver does not know. */
    String url() {
        String host = System.getenv("PGHOST").startsWith("/") ? "127.0.0.1" : System.getenv("PGHOST");
        return "jdbc:postgresql://" + host + ":" + System.getenv("PGPORT") + "/" + database
                + "?user=" + System.getenv("PGUSER");
    }

    static void eventually(String otherwise, Callable<Boolean> holds) throws Exception {
        for (long end = System.nanoTime() + 20_000_000_000L; !holds.call(); Thread.sleep(20)) {
            check(System.nanoTime() - end < 0, otherwise);
        }
    }

    static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }

    static void same(String what, Object got, Object want) {
        check(Objects.equals(got, want), what + ": " + got + ", and not " + want);
    }

    interface Action {
        void run() throws Exception;
    }

    /** What is thrown has to be of just this class. */
    static <E extends Exception> E thrown(Class<E> expected, Action action) throws Exception {
        try {
            action.run();
        } catch (Exception thrown) {
            if (thrown.getClass() != expected) {
                throw thrown;
            }
            return expected.cast(thrown);
        }
        throw new AssertionError("no " + expected.getSimpleName() + " was thrown");
    }

    private static String psql(String database, String... arguments) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(List.of("psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", database));
        command.addAll(List.of(arguments));
        Process psql = new ProcessBuilder(command).redirectErrorStream(true).start();
        String output = new String(psql.getInputStream().readAllBytes(), StandardCharsets.UTF_8).strip();
        check(psql.waitFor() == 0, output);
        return output;
    }

    public static void main(String[] versions) throws Exception {
        boolean passed = new JdbcClient(versions[0]).run();
        passed &= new SpringClient(versions[1]).run();
        passed &= new JpaClient(versions[2]).run();
        System.exit(passed ? 0 : 1);
    }
}
