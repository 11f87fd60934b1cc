// The programs of the recipe page, frozen, superseded and cut off.
package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v4/pgxpool"
)

const berlin = "(now() AT TIME ZONE 'Europe/Berlin')::date"

// daysAgo: nobody has the job, and it was done until so many days ago.
func daysAgo(s stack, days int) {
	s.reset()
	s.admin(fmt.Sprintf(`SELECT lease_checkpoint(name, token, jsonb_build_object('paid', %s - %d)), lease_release(name, token)
		FROM (SELECT 'daily-reward' AS name, lease_acquire('daily-reward', 'yesterday', '1 s') AS token) AS lease`, berlin, days))
}

func paid(url, node string) string {
	answer, err := payRewards(ctx, url, node)
	must(err)
	return answer
}

// paying is over after a while, whatever happens.
func paying(node string) <-chan string {
	answers := make(chan string, 1)
	go func() {
		answer, err := payRewards(ctx, pgxURL, node)
		if err != nil {
			answer = err.Error()
		}
		answers <- answer
	}()
	return answers
}

func answer(answers <-chan string) string {
	select {
	case answer := <-answers:
		return answer
	case <-time.After(15 * time.Second):
		panic(failed("the job has not ended"))
	}
}

func eachCoins(s stack, want string) {
	same("coins", s.admin("SELECT string_agg(coins::text, ' ') FROM player"), want)
}

// Two days were missed, and the job dies in the third payment. Another node pays what is left, once.
func recipeJob(s stack) {
	daysAgo(s, 3)
	s.admin(`CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN IF OLD.coins = 200 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END';
		CREATE TRIGGER die BEFORE UPDATE ON player FOR EACH ROW EXECUTE FUNCTION die()`)
	lost := paid(pgxURL, "node-1")
	s.admin("DROP FUNCTION die CASCADE")
	check(strings.HasPrefix(lost, "lost: token ") && strings.Contains(lost, "administrator command"), lost)
	same("before the expiry", paid(pgxURL, "node-2"), "somebody else has it")
	s.admin("SELECT lease_force_release('daily-reward')")
	// The session's time zone, where it is another day, does not move it.
	elsewhere := s.admin("SELECT name FROM (VALUES ('Pacific/Kiritimati'), ('Pacific/Pago_Pago')) AS zone (name)" +
		" WHERE (now() AT TIME ZONE name)::date <> " + berlin + " LIMIT 1")
	same("after it", paid(pgxURL+" timezone="+elsewhere, "node-2"), "done")
	same("once more", paid(pgxURL, "node-2"), "done already for today")
	eachCoins(s, "300 300 300")
	same("until", s.admin("SELECT completed_until = ("+berlin+" + 1)::timestamp AT TIME ZONE 'Europe/Berlin'"+
		" FROM lease_status WHERE name = 'daily-reward'"), "t")
}

// It has written, has not committed, and does nothing any more: its locks do not stop the next one.
func recipeFrozenPredecessor(s stack) {
	daysAgo(s, 1)
	frozen := pgxConnect()
	defer frozen.Close(ctx)
	tx := pgxFenced(frozen, pgxGranted(frozen, time.Minute))
	pgxExec(tx, pay)
	s.admin("SELECT lease_force_release('daily-reward')")
	same("the successor", answer(paying("node-2")), "done")
	check(tx.Commit(ctx) != nil, "the predecessor's COMMIT")
	eachCoins(s, "100 100 100")
}

// The lease goes to another node in the middle: that is an answer, and no error.
func recipeLostJob(s stack) {
	daysAgo(s, 1)
	blocker := pgxConnect()
	defer blocker.Close(ctx)
	tx, err := blocker.Begin(ctx)
	must(err)
	pgxExec(tx, "LOCK TABLE player")
	answers := paying("node-1")
	s.until("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE player%'", "1")
	s.takeOver()
	must(tx.Rollback(ctx))
	lost := answer(answers)
	check(strings.HasPrefix(lost, "lost: token ") && strings.Contains(lost, "was granted later"), lost) // the detail
	eachCoins(s, "0 0 0")
	same("a third one", paid(pgxURL, "node-3"), "somebody else has it")
}

func recipeOnce(s stack) {
	s.admin("INSERT INTO gift VALUES (1, 0); SELECT once_forget('0 s')")
	conn := pgxConnect()
	defer conn.Close(ctx)
	for _, want := range []bool{true, false} {
		first, err := giveOnce(ctx, conn)
		must(err)
		same("the first one", first, want)
	}
	same("coins", s.admin("SELECT coins FROM gift"), "100")
}

func recipeLeader(s stack) {
	const ttl = 1500 * time.Millisecond
	pool, err := pgxpool.Connect(ctx, pgxURL)
	must(err)
	defer pool.Close()
	works, err := pgxpool.Connect(ctx, pgxURL)
	must(err)
	defer works.Close()

	var lock sync.Mutex
	var tokens []int64
	seen := func() []int64 {
		lock.Lock()
		defer lock.Unlock()
		return tokens
	}
	save := prices(works, ttl, func(context.Context) (int, error) {
		if amount := len(seen()); amount%2 == 0 {
			return amount, nil
		}
		return 0, errors.New("503")
	})
	running, stop := context.WithCancel(ctx)
	defer stop()
	stopped := make(chan bool)
	go func() {
		defer close(stopped)
		campaign(running, pool, "node-1", ttl, func(ctx context.Context, token int64) error {
			lock.Lock()
			tokens = append(tokens, token)
			lock.Unlock()
			return save(ctx, token)
		})
	}()

	// It leads for longer than the time to live, whatever its source says.
	eventually("it does not work", func() bool { return len(seen()) > 15 })
	first := seen()[0]
	same("terms", first, seen()[len(seen())-1])
	same("price", s.admin("SELECT count(*) FROM price"), "1")

	// The lease is taken away, and it comes back under a token of its own.
	s.admin("SELECT lease_force_release('scheduler')")
	eventually("it has not come back", func() bool { return seen()[len(seen())-1] > first })

	// No answer comes any more on the connection of its work alone. The heartbeat does not keep the lease for it.
	blocker := pgxConnect()
	defer blocker.Close(ctx)
	tx, err := blocker.Begin(ctx)
	must(err)
	pgxExec(tx, "LOCK TABLE price")
	eventually("a leader that does nothing keeps the lease", func() bool {
		return s.admin("SELECT lease_acquire('scheduler', 'node-2', '30 s') IS NOT NULL") == "t"
	})
	must(tx.Rollback(ctx))
	late := s.admin("SELECT max(token) = (SELECT max(token) FROM lease_status) FROM price")
	same("a price under the token of node-2", late, "f")
	s.admin("SELECT lease_force_release('scheduler')")
	s.until("SELECT holder FROM lease_status WHERE name = 'scheduler' AND state = 'held'", "node-1")

	// Stopped, it releases the lease.
	stop()
	<-stopped
	same("after the end", s.admin("SELECT state FROM lease_status WHERE name = 'scheduler'"), "free")
}
