// [errors]
import java.sql.SQLException;

final class Errors {
    /** Of whatever a framework has made of the driver's exception. */
    static String sqlState(Throwable thrown) {
        for (Throwable cause = thrown; cause != null; cause = cause.getCause()) {
            if (cause instanceof SQLException) {
                return ((SQLException) cause).getSQLState();
            }
        }
        return null;
    }

    /** Stop: the lease is lost, and so is this transaction. */
    static boolean isSuperseded(Throwable thrown) {
        return "LX001".equals(sqlState(thrown));
    }

    static boolean isRetryable(Throwable thrown) {
        return "40001".equals(sqlState(thrown));
    }
}
// [end errors]
