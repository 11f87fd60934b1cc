package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
)

// PGHOST, PGPORT and PGUSER are read by the driver.
const pgxURL = "dbname=clients_pgx"

var ctx = context.Background()

// The time to live of the leases that heartbeats are tested with.
const beat = 600 * time.Millisecond

var pgxScenarios = map[string]scenario{
	"grant": pgxGrant, "heartbeat": pgxHeartbeat, "fenced_transaction": pgxFencedTransaction,
	"fenced_column": pgxFencedColumn, "refused_write": pgxRefusedWrite, "refused_commit": pgxRefusedCommit,
	"once": pgxOnce, "checkpoint": pgxCheckpoint, "wait_timeout": pgxWaitTimeout,
	"lost_connection": pgxLostConnection,
	"migration":       func(stack) string { return "the driver has no migrations; see lib-pq" },
}

const pay = "UPDATE player SET coins = coins + 100"
const coins = "SELECT sum(coins) FROM player"
const acquire = "SELECT lease_acquire($1, $2, $3)"
const save = `INSERT INTO entry (id, amount, token) VALUES ($1, $2, $3)
	ON CONFLICT (id) DO UPDATE SET amount = excluded.amount, token = excluded.token`

func pgxConnect() *pgx.Conn {
	conn, err := pgx.Connect(ctx, pgxURL)
	must(err)
	return conn
}

func pgxGranted(conn *pgx.Conn, ttl time.Duration) int64 {
	var token *int64
	must(conn.QueryRow(ctx, acquire, lease, "node-1", ttl).Scan(&token))
	check(token != nil, "not granted")
	return *token
}

func pgxFenced(conn *pgx.Conn, token int64) pgx.Tx {
	tx, err := conn.Begin(ctx)
	must(err)
	_, err = tx.Exec(ctx, "SELECT lease_fence($1, $2)", lease, token)
	must(err)
	return tx
}

func pgxExec(db interface {
	Exec(context.Context, string, ...interface{}) (pgconn.CommandTag, error)
}, sql string, values ...interface{}) {
	_, err := db.Exec(ctx, sql, values...)
	must(err)
}

func pgxGrant(s stack) string {
	conn := pgxConnect()
	defer conn.Close(ctx)
	token := pgxGranted(conn, 30*time.Second)
	same("token", fmt.Sprint(token), s.admin("SELECT token FROM lease_status WHERE name = 'daily-reward'"))
	check(token > 9007199254730000, "the token is not above the floor")
	same("ttl", s.admin("SELECT ttl FROM lease_status WHERE name = 'daily-reward'"), "00:00:30")
	var other *int64
	must(conn.QueryRow(ctx, acquire, lease, "node-2", 30*time.Second).Scan(&other))
	check(other == nil, "granted to two")

	// A string goes as well, a number does not.
	must(conn.QueryRow(ctx, acquire, "x", "y", "30 seconds").Scan(&other))
	check(other != nil, "not granted for a string")
	err := conn.QueryRow(ctx, acquire, "x", "y", 30).Scan(&other)
	check(err != nil && strings.HasSuffix(err.Error(), "cannot convert 30 to Interval"), "a number:", err)

	var highest int64
	var text string
	must(conn.QueryRow(ctx, "SELECT $1::bigint, $1::bigint::text", int64(math.MaxInt64)).Scan(&highest, &text))
	same("highest bigint", highest, int64(math.MaxInt64))
	same("its text", text, "9223372036854775807")
	return ""
}

func pgxHeartbeat(s stack) string {
	conn := pgxConnect()
	defer conn.Close(ctx)
	pool, err := pgxpool.Connect(ctx, pgxURL)
	must(err)
	defer pool.Close()
	asked := time.Now()
	token := pgxGranted(conn, beat)
	holding, stop := holding(ctx, beat, asked, func(ctx context.Context) (mine bool, err error) {
		err = pool.QueryRow(ctx, "SELECT lease_extend($1, $2) IS NOT NULL", lease, token).Scan(&mine)
		return mine, err
	})
	defer stop()

	// This connection is busy for longer than the time to live.
	pgxExec(conn, "SELECT pg_sleep(1.5)")
	var current bool
	must(conn.QueryRow(ctx, "SELECT lease_is_current($1, $2)", lease, token).Scan(&current))
	check(current && holding.Err() == nil, "the lease was not extended")

	// No answer comes any more: its own deadline ends it.
	tx, err := conn.Begin(ctx)
	must(err)
	pgxExec(tx, "LOCK TABLE lock_ext.lease")
	eventually("no deadline of its own", func() bool { return holding.Err() != nil })
	must(tx.Rollback(ctx))

	// And so does the loss of the lease, however far the deadline is.
	holding, stop = loses()
	defer stop()
	eventually("the loss was not noticed", func() bool { return holding.Err() != nil })
	recipeLeader(s)
	return ""
}

func loses() (context.Context, context.CancelFunc) {
	extend := func(context.Context) (bool, error) { return false, nil }
	return holding(ctx, beat, time.Now().Add(time.Hour), extend)
}

func pgxFencedTransaction(s stack) string {
	conn := pgxConnect()
	defer conn.Close(ctx)
	_, err := conn.Exec(ctx, pay)
	same("without a token", sqlstate(err), "LX003")

	tx := pgxFenced(conn, pgxGranted(conn, 30*time.Second))
	pgxExec(tx, pay)
	pgxExec(tx, "INSERT INTO player VALUES ($1, $2)", 4, 50)
	must(tx.Commit(ctx))
	same("coins", s.admin(coins), "350")
	return ""
}

func pgxFencedColumn(s stack) string {
	conn := pgxConnect()
	defer conn.Close(ctx)
	token := pgxGranted(conn, 30*time.Second)
	pgxExec(conn, save, 1, 100, token)
	pgxExec(conn, save, 1, 200, token)
	var amount, saved int64
	must(conn.QueryRow(ctx, "SELECT amount, token FROM entry").Scan(&amount, &saved))
	same("entry", [2]int64{amount, saved}, [2]int64{200, token})

	s.takeOver()
	_, err := conn.Exec(ctx, save, 1, 300, token)
	same("superseded", sqlstate(err), "LX001")
	same("amount", s.admin("SELECT amount FROM entry"), "200")
	return ""
}

func pgxRefusedWrite(s stack) string {
	conn := pgxConnect()
	defer conn.Close(ctx)
	token := pgxGranted(conn, 30*time.Second)
	attempts := 0
	var err error
	for attempts == 0 || isRetryable(err) && attempts < 3 {
		attempts++
		tx := pgxFenced(conn, token)
		if attempts == 1 {
			s.takeOver()
		}
		_, err = tx.Exec(ctx, pay)
		same("COMMIT of what failed", tx.Commit(ctx), pgx.ErrTxCommitRollback)
	}
	same("attempts", attempts, 1)
	check(isSuperseded(err), "refused with", err)
	var server *pgconn.PgError
	check(errors.As(err, &server), "no error of the server")
	same("table", server.TableName, "player")
	check(strings.Contains(server.Detail, lease), "the detail does not name the lease")
	same("coins", s.admin(coins), "0")
	return ""
}

func pgxRefusedCommit(s stack) string {
	conn := pgxConnect()
	defer conn.Close(ctx)
	tx := pgxFenced(conn, pgxGranted(conn, 30*time.Second))
	pgxExec(tx, pay)
	s.takeOver()
	err := tx.Commit(ctx)
	check(isSuperseded(err) && !isRetryable(err), "COMMIT:", err)
	same("coins", s.admin(coins), "0")
	return ""
}

func pgxOnce(s stack) string {
	conn := pgxConnect()
	defer conn.Close(ctx)
	var firsts [3]bool
	for i, end := range []func(pgx.Tx) error{
		func(tx pgx.Tx) error { return tx.Rollback(ctx) },
		func(tx pgx.Tx) error { return tx.Commit(ctx) },
		func(tx pgx.Tx) error { return tx.Commit(ctx) },
	} {
		tx, err := conn.Begin(ctx)
		must(err)
		must(tx.QueryRow(ctx, "SELECT once($1)", "mail:1").Scan(&firsts[i]))
		must(end(tx))
	}
	same("rolled back, committed, again", firsts, [3]bool{true, true, false})
	same("once more", s.admin("SELECT once('mail:1')"), "f")
	recipeOnce(s)
	return ""
}

func pgxCheckpoint(s stack) string {
	type progress struct{ After int64 }
	conn := pgxConnect()
	token := pgxGranted(conn, 30*time.Second)
	checkpoint := func(after int64) pgx.Tx {
		tx := pgxFenced(conn, token)
		pgxExec(tx, pay)
		pgxExec(tx, "SELECT lease_checkpoint($1, $2, $3)", lease, token, progress{after})
		return tx
	}
	must(checkpoint(math.MaxInt64).Commit(ctx))

	// The crash: neither the work nor its checkpoint is there.
	tx := checkpoint(0)
	s.admin(fmt.Sprintf("SELECT pg_terminate_backend(%d, 5000)", conn.PgConn().PID()))
	check(tx.Commit(ctx) != nil, "COMMIT after the crash")

	s.admin("SELECT lease_force_release('daily-reward')")
	conn = pgxConnect()
	defer conn.Close(ctx)
	tx = pgxFenced(conn, pgxGranted(conn, 30*time.Second))
	var found progress
	must(tx.QueryRow(ctx, "SELECT lease_checkpoint($1)", lease).Scan(&found))
	same("checkpoint", found, progress{math.MaxInt64})
	must(tx.Commit(ctx))
	same("coins", s.admin(coins), "300")
	recipeJob(s)
	recipeFrozenPredecessor(s)
	recipeLostJob(s)
	return ""
}

func pgxWaitTimeout(s stack) string {
	s.takeOver()
	wait := "SELECT lease_acquire($1, $2, $3, wait => $4)"
	conn := pgxConnect()
	var token *int64
	limited, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	err := conn.QueryRow(limited, wait, lease, "node-1", 30*time.Second, time.Minute).Scan(&token)
	check(pgconn.Timeout(err), "the wait ended with", err)
	check(conn.IsClosed(), "pgx left the connection open")
	s.until("SELECT count(*) FROM lease_waiter", "0")

	// A timeout of the server leaves the connection usable.
	conn = pgxConnect()
	defer conn.Close(ctx)
	pgxExec(conn, "SET statement_timeout = '300ms'")
	err = conn.QueryRow(ctx, wait, lease, "node-1", 30*time.Second, time.Minute).Scan(&token)
	same("timeout", sqlstate(err), "57014")
	same("waiters", s.admin("SELECT count(*) FROM lease_waiter"), "0")
	pgxExec(conn, "SELECT 7")
	return ""
}

func pgxLostConnection(s stack) string {
	conn := pgxConnect()
	token := pgxGranted(conn, 30*time.Second)
	tx := pgxFenced(conn, token)
	pgxExec(tx, pay)
	s.admin(fmt.Sprintf("SELECT pg_terminate_backend(%d, 5000)", conn.PgConn().PID()))
	_, err := tx.Exec(ctx, pay)
	check(err != nil && (sqlstate(err) == "57P01" || sqlstate(err) == ""), "a write on a lost connection:", err)
	check(conn.IsClosed(), "the connection is open")
	same("coins", s.admin(coins), "0")

	conn = pgxConnect()
	defer conn.Close(ctx)
	tx = pgxFenced(conn, token)
	pgxExec(tx, pay)
	must(tx.Commit(ctx))
	same("coins", s.admin(coins), "300")
	return ""
}
