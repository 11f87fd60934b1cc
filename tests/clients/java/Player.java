import javax.persistence.Entity;
import javax.persistence.Id;

@Entity
class Player {
    @Id
    int id;

    int coins;

    protected Player() {
    }

    Player(int id, int coins) {
        this.id = id;
        this.coins = coins;
    }
}
