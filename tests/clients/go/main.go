// Clients of lock_ext in Go: what they have in common, an administrator (psql, so that no driver is tested with itself)
// and the report, a line for each scenario.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"time"
)

// The lease that most scenarios are about.
const lease = "daily-reward"

// Versions of Debian's packages, and the folder of this file; set by the linker.
var pgxVersion, pqVersion, gormVersion, sources string

var scenarios = []string{
	"grant", "heartbeat", "fenced_transaction", "fenced_column", "refused_write", "refused_commit",
	"once", "checkpoint", "wait_timeout", "lost_connection", "migration",
}

type stack struct {
	name, version, database string
}

// A scenario gives why it cannot be played, or nothing; whatever goes wrong is a panic.
type scenario func(s stack) (skip string)

func (s stack) run(plays map[string]scenario) (failed bool) {
	for _, name := range scenarios {
		s.reset()
		skip, why := s.play(plays[name])
		switch {
		case why != "":
			failed = true
			fmt.Printf("not ok %s %s - %s: %s\n", s.name, s.version, name, strings.ReplaceAll(why, "\n", " "))
		case skip != "":
			fmt.Printf("skip %s %s - %s: %s\n", s.name, s.version, name, skip)
		default:
			fmt.Printf("ok %s %s - %s\n", s.name, s.version, name)
		}
	}
	return failed
}

func (s stack) play(play scenario) (skip, why string) {
	defer func() {
		if failure := recover(); failure != nil {
			why = fmt.Sprint(failure)
			if _, ours := failure.(failed); !ours {
				fmt.Fprintf(os.Stderr, "%s\n", debug.Stack())
			}
		}
	}()
	return play(s), ""
}

// create makes the stack's database. Tokens begin where a double is about to end.
func (s stack) create() {
	psql("postgres", "DROP DATABASE IF EXISTS "+s.database, "CREATE DATABASE "+s.database)
	migrate(s)
	s.admin("SELECT lease_raise_token_floor(9007199254730000)")
}

// reset leaves an empty slate: nobody holds the lease, and the tables are as the migrations made them.
func (s stack) reset() {
	s.admin(`SELECT lease_force_release(name) FROM lease_status;
		SET LOCAL session_replication_role = replica;
		TRUNCATE player, entry, price, gift; INSERT INTO player VALUES (1, 0), (2, 0), (3, 0)`)
}

func (s stack) admin(sql string) string { return psql(s.database, sql) }

// takeOver gives the lease to another holder.
func (s stack) takeOver() {
	s.admin("SELECT lease_force_release('daily-reward')")
	same("taken over", s.admin("SELECT lease_acquire('daily-reward', 'other', '30 s') IS NOT NULL"), "t")
}

// until polls.
func (s stack) until(sql, want string) {
	eventually(sql+": not "+want, func() bool { return s.admin(sql) == want })
}

func eventually(otherwise string, holds func() bool) {
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		check(time.Now().Before(deadline), otherwise)
	}
}

type failed string

func check(holds bool, otherwise string, values ...interface{}) {
	if !holds {
		panic(failed(strings.TrimSpace(fmt.Sprintln(append([]interface{}{otherwise}, values...)...))))
	}
}

func same(what string, got, want interface{}) {
	check(got == want, fmt.Sprintf("%s: %v, and not %v", what, got, want))
}

func must(err error) {
	check(err == nil, fmt.Sprintf("%T: %v", err, err))
}

func psql(database string, statements ...string) string {
	arguments := []string{"-XqAt", "-v", "ON_ERROR_STOP=1", "-d", database}
	for _, statement := range statements {
		arguments = append(arguments, "-c", statement)
	}
	output, err := exec.Command("psql", arguments...).CombinedOutput()
	check(err == nil, "psql:", err, string(output))
	return strings.TrimSpace(string(output))
}

func main() {
	status := 0
	for _, s := range []struct {
		stack
		plays map[string]scenario
	}{
		{stack{"pgx", pgxVersion, "clients_pgx"}, pgxScenarios},
		{stack{"lib-pq", pqVersion, "clients_pq"}, pqScenarios},
		{stack{"gorm", gormVersion, "clients_gorm"}, gormScenarios},
	} {
		s.create()
		if s.run(s.plays) {
			status = 1
		}
	}
	os.Exit(status)
}
