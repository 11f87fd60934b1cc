package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"time"

	"github.com/lib/pq"
	migration "github.com/rubenv/sql-migrate"
)

var pqScenarios = map[string]scenario{
	"grant": pqGrant, "heartbeat": pqHeartbeat, "fenced_transaction": pqFencedTransaction,
	"fenced_column": pqFencedColumn, "refused_write": pqRefusedWrite, "refused_commit": pqRefusedCommit,
	"once": pqOnce, "checkpoint": pqCheckpoint, "wait_timeout": pqWaitTimeout,
	"lost_connection": pqLostConnection, "migration": pqMigration,
}

// PGHOST, PGPORT and PGUSER are read by the driver.
func pqOpen(s stack) *sql.DB {
	db, err := sql.Open("postgres", "dbname="+s.database+" sslmode=disable")
	must(err)
	return db
}

func pqGranted(db *sql.DB, ttl time.Duration) int64 {
	var token sql.NullInt64
	must(db.QueryRow(acquire, lease, "node-1", ttl.String()).Scan(&token))
	check(token.Valid, "not granted")
	return token.Int64
}

func pqFenced(db *sql.DB, token int64) *sql.Tx {
	tx, err := db.Begin()
	must(err)
	_, err = tx.Exec("SELECT lease_fence($1, $2)", lease, token)
	must(err)
	return tx
}

func pqExec(db interface {
	Exec(string, ...interface{}) (sql.Result, error)
}, statement string, values ...interface{}) {
	_, err := db.Exec(statement, values...)
	must(err)
}

func pqTerminate(s stack, tx *sql.Tx) {
	var pid int
	must(tx.QueryRow("SELECT pg_backend_pid()").Scan(&pid))
	s.admin(fmt.Sprintf("SELECT pg_terminate_backend(%d, 5000)", pid))
}

func pqGrant(s stack) string {
	db := pqOpen(s)
	defer db.Close()
	token := pqGranted(db, 90*time.Second)
	same("token", fmt.Sprint(token), s.admin("SELECT token FROM lease_status WHERE name = 'daily-reward'"))
	check(token > 9007199254730000, "the token is not above the floor")
	same("ttl of 1m30s", s.admin("SELECT ttl FROM lease_status WHERE name = 'daily-reward'"), "00:01:30")
	var other sql.NullInt64
	must(db.QueryRow(acquire, lease, "node-2", "30 seconds").Scan(&other))
	check(!other.Valid, "granted to two")

	// database/sql takes a Duration for its nanoseconds, and lib/pq a number for seconds: longer than any lease may be.
	err := db.QueryRow(acquire, "x", "y", time.Millisecond).Scan(&other)
	same("a Duration", sqlstate(err), "22023")
	must(db.QueryRow(acquire, "x", "y", 30).Scan(&other))
	same("30", s.admin("SELECT ttl FROM lease_status WHERE name = 'x'"), "00:00:30")

	var highest int64
	must(db.QueryRow("SELECT $1::bigint", int64(math.MaxInt64)).Scan(&highest))
	same("highest bigint", highest, int64(math.MaxInt64))
	return ""
}

// beating extends the lease from a pool of its own.
func beating(s stack, token int64, asked time.Time) (context.Context, context.CancelFunc) {
	heartbeats := pqOpen(s)
	return holding(ctx, beat, asked, func(ctx context.Context) (mine bool, err error) {
		extend := "SELECT lease_extend($1, $2) IS NOT NULL"
		err = heartbeats.QueryRowContext(ctx, extend, lease, token).Scan(&mine)
		return mine, err
	})
}

func pqHeartbeat(s stack) string {
	db := pqOpen(s)
	defer db.Close()
	asked := time.Now()
	token := pqGranted(db, beat)
	holding, stop := beating(s, token, asked)
	defer stop()

	pqExec(db, "SELECT pg_sleep(1.5)")
	var current bool
	must(db.QueryRow("SELECT lease_is_current($1, $2)", lease, token).Scan(&current))
	check(current && holding.Err() == nil, "the lease was not extended")

	// The lease is lost: the work's statement ends, and its transaction.
	tx, err := db.BeginTx(holding, nil)
	must(err)
	s.takeOver()
	_, err = tx.ExecContext(holding, "SELECT pg_sleep(30)")
	check(err != nil && holding.Err() != nil, "the work goes on without the lease")

	// No answer comes any more: its own deadline ends it.
	s.reset()
	asked = time.Now()
	holding, stop = beating(s, pqGranted(db, beat), asked)
	defer stop()
	tx, err = db.Begin()
	must(err)
	pqExec(tx, "LOCK TABLE lock_ext.lease")
	eventually("no deadline of its own", func() bool { return holding.Err() != nil })
	must(tx.Rollback())
	return ""
}

func pqFencedTransaction(s stack) string {
	db := pqOpen(s)
	defer db.Close()
	_, err := db.Exec(pay)
	same("without a token", sqlstate(err), "LX003")

	tx := pqFenced(db, pqGranted(db, 30*time.Second))
	pqExec(tx, pay)
	pqExec(tx, "INSERT INTO player VALUES ($1, $2)", 4, 50)
	must(tx.Commit())
	same("coins", s.admin(coins), "350")
	return ""
}

func pqFencedColumn(s stack) string {
	db := pqOpen(s)
	defer db.Close()
	token := pqGranted(db, 30*time.Second)
	pqExec(db, save, 1, 100, token)
	pqExec(db, save, 1, 200, token)
	var amount, saved int64
	must(db.QueryRow("SELECT amount, token FROM entry").Scan(&amount, &saved))
	same("entry", [2]int64{amount, saved}, [2]int64{200, token})

	s.takeOver()
	_, err := db.Exec(save, 1, 300, token)
	same("superseded", sqlstate(err), "LX001")
	same("amount", s.admin("SELECT amount FROM entry"), "200")
	return ""
}

func pqRefusedWrite(s stack) string {
	db := pqOpen(s)
	defer db.Close()
	token := pqGranted(db, 30*time.Second)
	attempts := 0
	var err error
	for attempts == 0 || isRetryable(err) && attempts < 3 {
		attempts++
		tx := pqFenced(db, token)
		if attempts == 1 {
			s.takeOver()
		}
		_, err = tx.Exec(pay)
		commit := tx.Commit()
		check(commit != nil && strings.Contains(commit.Error(), "in a failed transaction"), "COMMIT of what failed:", commit)
	}
	same("attempts", attempts, 1)
	check(isSuperseded(err), "refused with", err)
	var server *pq.Error
	check(errors.As(err, &server), "no error of the server")
	same("code", server.Code, pq.ErrorCode("LX001"))
	same("table", server.Table, "player")
	check(strings.Contains(server.Detail, lease), "the detail does not name the lease")
	same("coins", s.admin(coins), "0")
	return ""
}

func pqRefusedCommit(s stack) string {
	db := pqOpen(s)
	defer db.Close()
	tx := pqFenced(db, pqGranted(db, 30*time.Second))
	pqExec(tx, pay)
	s.takeOver()
	err := tx.Commit()
	check(isSuperseded(err) && !isRetryable(err), "COMMIT:", err)
	same("coins", s.admin(coins), "0")
	return ""
}

func pqOnce(s stack) string {
	db := pqOpen(s)
	defer db.Close()
	var firsts [3]bool
	for i, end := range []func(*sql.Tx) error{(*sql.Tx).Rollback, (*sql.Tx).Commit, (*sql.Tx).Commit} {
		tx, err := db.Begin()
		must(err)
		must(tx.QueryRow("SELECT once($1)", "mail:1").Scan(&firsts[i]))
		must(end(tx))
	}
	same("rolled back, committed, again", firsts, [3]bool{true, true, false})
	same("once more", s.admin("SELECT once('mail:1')"), "f")
	return ""
}

func pqCheckpoint(s stack) string {
	db := pqOpen(s)
	defer db.Close()
	token := pqGranted(db, 30*time.Second)
	tx := pqFenced(db, token)
	state, err := json.Marshal(map[string]int64{"after": math.MaxInt64})
	must(err)
	pqExec(tx, "SELECT lease_checkpoint($1, $2, $3)", lease, token, state)
	must(tx.Commit())
	var found []byte
	must(db.QueryRow("SELECT lease_checkpoint($1)", lease).Scan(&found))
	same("checkpoint", string(found), `{"after": 9223372036854775807}`)
	return ""
}

func pqWaitTimeout(s stack) string {
	s.takeOver()
	db := pqOpen(s)
	defer db.Close()
	db.SetMaxOpenConns(1)
	limited, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	wait := "SELECT lease_acquire($1, $2, '30 s', wait => '1 min')"
	_, err := db.ExecContext(limited, wait, lease, "node-1")
	check(sqlstate(err) == "57014" || errors.Is(err, context.DeadlineExceeded), "the wait ended with", err)
	s.until("SELECT count(*) FROM lease_waiter", "0")
	pqExec(db, "SELECT 7")
	return ""
}

func pqLostConnection(s stack) string {
	db := pqOpen(s)
	defer db.Close()
	token := pqGranted(db, 30*time.Second)
	tx := pqFenced(db, token)
	pqExec(tx, pay)
	pqTerminate(s, tx)
	_, err := tx.Exec(pay)
	same("a write on a lost connection", err, driver.ErrBadConn)
	check(tx.Commit() != nil, "COMMIT on a lost connection")
	same("coins", s.admin(coins), "0")

	tx = pqFenced(db, token) // the pool has replaced the connection
	pqExec(tx, pay)
	must(tx.Commit())
	same("coins", s.admin(coins), "300")
	return ""
}

func migrations() migration.FileMigrationSource {
	return migration.FileMigrationSource{Dir: filepath.Join(sources, "migrations")}
}

func migrate(s stack) {
	db := pqOpen(s)
	defer db.Close()
	_, err := migration.Exec(db, "postgres", migrations(), migration.Up)
	must(err)
}

func pqMigration(s stack) string {
	db := pqOpen(s)
	defer db.Close()
	fences := "SELECT count(*) FROM fence_status WHERE hole IS NULL"
	same("fences", s.admin(fences), "3")
	_, err := migration.ExecMax(db, "postgres", migrations(), migration.Down, 1)
	must(err)
	same("fences after down", s.admin(fences), "0")
	pqExec(db, pay)
	migrate(s)
	same("fences after up", s.admin(fences), "3")
	_, err = db.Exec(pay)
	same("without a token", sqlstate(err), "LX003")
	return ""
}
