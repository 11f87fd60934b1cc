import javax.persistence.Entity;
import javax.persistence.Id;

@Entity
class Entry {
    @Id
    int id;

    int amount;

    /** Whoever wrote the row last. */
    long token;

    protected Entry() {
    }

    Entry(int id, int amount, long token) {
        this.id = id;
        this.amount = amount;
        this.token = token;
    }
}
