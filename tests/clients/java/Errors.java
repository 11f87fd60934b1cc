// [errors]
import java.sql.SQLException;

final class Errors {
    /** Of whatever a framework has made of the driver's exception. */
    static String sqlState(Throwable thrown) {
        SQLException error = driversOwn(thrown);
        return error == null ? null : error.getSQLState();
    }

    /** Stop: the lease is lost, and so is this transaction. */
    static boolean isSuperseded(Throwable thrown) {
        return "LX001".equals(sqlState(thrown));
    }

    /** Superseded, or evicted, or cut off: the token may be lost. Extend it on a new connection, or do not use it. */
    static boolean mayBeLost(Throwable thrown) {
        String state = String.valueOf(sqlState(thrown));
        return isSuperseded(thrown) || state.equals("57P01") || state.startsWith("08");
    }

    static boolean isRetryable(Throwable thrown) {
        return "40001".equals(sqlState(thrown));
    }

    /** On one line. The driver puts the DETAIL in, which says why, unless the URL has logServerErrorDetail=false. */
    static String explain(Throwable thrown) {
        SQLException error = driversOwn(thrown);
        return String.valueOf((error == null ? thrown : error).getMessage()).replaceAll("\\s*\n\\s*", " ");
    }

    private static SQLException driversOwn(Throwable thrown) {
        for (Throwable cause = thrown; cause != null; cause = cause.getCause()) {
            if (cause instanceof SQLException) {
                return (SQLException) cause;
            }
        }
        return null;
    }
}
// [end errors]
