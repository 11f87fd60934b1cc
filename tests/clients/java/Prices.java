// [prices]
import java.io.IOException;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;

final class Prices implements Leader.Work {
    interface Source {
        /** With a timeout of its own. */
        int read() throws IOException;
    }

    private final Source source;

    Prices(Source source) {
        this.source = source;
    }

    @Override
    public void round(Connection connection, long token) throws IOException, SQLException {
        int amount = source.read(); // first, and outside of a transaction: it may take long
        String save = "INSERT INTO price (id, amount, token) VALUES (1, ?, ?)"
                + " ON CONFLICT (id) DO UPDATE SET amount = excluded.amount, token = excluded.token";
        try (PreparedStatement statement = connection.prepareStatement(save)) {
            statement.setInt(1, amount);
            statement.setLong(2, token); // the one that was there before the read
            statement.executeUpdate();
        }
    }
}
// [end prices]
