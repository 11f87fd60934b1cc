// [fenced]
import java.util.function.Consumer;
import javax.persistence.EntityManager;
import javax.persistence.EntityManagerFactory;

final class Fenced {
    /** Runs the work in a transaction of its own, all of whose writes are under the token. */
    static void transaction(EntityManagerFactory factory, String lease, long token, Consumer<EntityManager> work) {
        EntityManager manager = factory.createEntityManager();
        try {
            manager.getTransaction().begin();
            manager.createNativeQuery("SELECT lease_fence(?, ?)")
                    .setParameter(1, lease).setParameter(2, token).getSingleResult();
            work.accept(manager);
            manager.getTransaction().commit();
        } catch (RuntimeException failure) {
            try {
                if (manager.getTransaction().isActive()) {
                    manager.getTransaction().rollback();
                }
            } catch (RuntimeException another) {
                failure.addSuppressed(another); // the first one says what has happened
            }
            throw failure;
        } finally {
            manager.close();
        }
    }
}
// [end fenced]
