package main

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jinzhu/gorm"
)

var gormScenarios = map[string]scenario{
	"grant": gormGrant, "heartbeat": gormHeartbeat, "fenced_transaction": gormFencedTransaction,
	"fenced_column": gormFencedColumn, "refused_write": gormRefusedWrite, "refused_commit": gormRefusedCommit,
	"once": gormOnce, "checkpoint": gormCheckpoint, "wait_timeout": gormWaitTimeout,
	"lost_connection": gormLostConnection,
	"migration":       func(stack) string { return "AutoMigrate knows no triggers; see lib-pq for sql-migrate" },
}

func gormOpen(s stack) *gorm.DB {
	db, err := gorm.Open("postgres", pqOpen(s))
	must(err)
	db.LogMode(false)
	return db
}

func gormGranted(db *gorm.DB, ttl time.Duration) int64 {
	token, err := tryLease(db, lease, "node-1", ttl)
	must(err)
	check(token != nil, "not granted")
	return *token
}

// All players' coins, saved one by one.
func gormPay(tx *gorm.DB) error {
	var players []Player
	if err := tx.Order("id").Find(&players).Error; err != nil {
		return err
	}
	for _, player := range players {
		player.Coins += 100
		if err := tx.Save(&player).Error; err != nil {
			return err
		}
	}
	return nil
}

func gormGrant(s stack) string {
	db := gormOpen(s)
	defer db.Close()
	token := gormGranted(db, 30*time.Second)
	same("token", fmt.Sprint(token), s.admin("SELECT token FROM lease_status WHERE name = 'daily-reward'"))
	check(token > 9007199254730000, "the token is not above the floor")
	other, err := tryLease(db, lease, "node-2", 30*time.Second)
	must(err)
	check(other == nil, "granted to two")
	var highest int64
	must(db.Raw("SELECT ?::bigint", int64(math.MaxInt64)).Row().Scan(&highest))
	same("highest bigint", highest, int64(math.MaxInt64))
	return ""
}

func gormHeartbeat(s stack) string {
	db := gormOpen(s)
	defer db.Close()
	asked := time.Now()
	token := gormGranted(db, beat)
	holding, stop := beating(s, token, asked)
	defer stop()
	must(fenced(db, lease, token, func(tx *gorm.DB) error { return tx.Exec("SELECT pg_sleep(1.5)").Error }))
	must(fenced(db, lease, token, gormPay))
	check(holding.Err() == nil, "the lease was not extended")
	s.takeOver()
	eventually("the loss was not noticed", func() bool { return holding.Err() != nil })
	return ""
}

func gormFencedTransaction(s stack) string {
	db := gormOpen(s)
	defer db.Close()
	same("without a token", sqlstate(gormPay(db)), "LX003")

	must(fenced(db, lease, gormGranted(db, 30*time.Second), func(tx *gorm.DB) error {
		if err := tx.Create(&Player{ID: 4, Coins: 50}).Error; err != nil {
			return err
		}
		return gormPay(tx)
	}))
	same("coins", s.admin(coins), "450")
	return ""
}

func gormFencedColumn(s stack) string {
	db := gormOpen(s)
	defer db.Close()
	token := gormGranted(db, 30*time.Second)
	must(db.Create(&Entry{ID: 1, Amount: 100, Token: token}).Error)
	var entry Entry
	must(db.First(&entry, 1).Error)
	same("entry", entry, Entry{1, 100, token})
	entry.Amount = 200
	must(db.Save(&entry).Error)

	// An update of other columns carries no token.
	same("Update", sqlstate(db.Model(&entry).Update("amount", 250).Error), "LX003")
	s.takeOver()
	entry.Amount = 300
	same("superseded", sqlstate(db.Save(&entry).Error), "LX001")
	same("amount", s.admin("SELECT amount FROM entry"), "200")
	return ""
}

func gormRefusedWrite(s stack) string {
	db := gormOpen(s)
	defer db.Close()
	token := gormGranted(db, 30*time.Second)
	attempts := 0
	var err error
	for attempts == 0 || isRetryable(err) && attempts < 3 {
		attempts++
		err = fenced(db, lease, token, func(tx *gorm.DB) error {
			if attempts == 1 {
				s.takeOver()
			}
			return gormPay(tx)
		})
	}
	same("attempts", attempts, 1)
	check(isSuperseded(err), "refused with", err)

	// An error that the work does not pass on is found at the COMMIT.
	s.admin("SELECT lease_force_release('daily-reward')")
	err = fenced(db, lease, gormGranted(db, 30*time.Second), func(tx *gorm.DB) error {
		s.takeOver()
		_ = gormPay(tx)
		return nil
	})
	check(err != nil && strings.Contains(err.Error(), "in a failed transaction"), "COMMIT of what failed:", err)
	same("coins", s.admin(coins), "0")
	return ""
}

func gormRefusedCommit(s stack) string {
	db := gormOpen(s)
	defer db.Close()
	err := fenced(db, lease, gormGranted(db, 30*time.Second), func(tx *gorm.DB) error {
		defer s.takeOver()
		return gormPay(tx)
	})
	check(isSuperseded(err) && !isRetryable(err), "COMMIT:", err)
	same("coins", s.admin(coins), "0")
	return ""
}

func gormOnce(s stack) string {
	db := gormOpen(s)
	defer db.Close()
	var firsts [3]bool
	rollback := fmt.Errorf("roll back")
	for i, end := range []error{rollback, nil, nil} {
		same("transaction", db.Transaction(func(tx *gorm.DB) error {
			must(tx.Raw("SELECT once(?)", "mail:1").Row().Scan(&firsts[i]))
			return end
		}), end)
	}
	same("rolled back, committed, again", firsts, [3]bool{true, true, false})
	same("once more", s.admin("SELECT once('mail:1')"), "f")
	return ""
}

func gormCheckpoint(s stack) string {
	db := gormOpen(s)
	defer db.Close()
	token := gormGranted(db, 30*time.Second)
	work := func(state string, then func(*gorm.DB)) error {
		return fenced(db, lease, token, func(tx *gorm.DB) error {
			must(gormPay(tx))
			must(tx.Exec("SELECT lease_checkpoint(?, ?, ?)", lease, token, state).Error)
			then(tx)
			return nil
		})
	}
	must(work(`{"after": 1}`, func(*gorm.DB) {}))
	// The crash: neither the work nor its checkpoint is there.
	crash := work(`{"after": 2}`, func(tx *gorm.DB) { gormTerminate(s, tx) })
	check(crash != nil, "COMMIT after the crash")

	s.admin("SELECT lease_force_release('daily-reward')")
	var found string
	must(fenced(db, lease, gormGranted(db, 30*time.Second), func(tx *gorm.DB) error {
		return tx.Raw("SELECT lease_checkpoint(?)", lease).Row().Scan(&found)
	}))
	same("checkpoint", found, `{"after": 1}`)
	same("coins", s.admin(coins), "300")
	return ""
}

// gorm of this age has no context: the timeout is the server's.
func gormWaitTimeout(s stack) string {
	s.takeOver()
	db := gormOpen(s)
	defer db.Close()
	db.DB().SetMaxOpenConns(1)
	err := db.Transaction(func(tx *gorm.DB) error {
		must(tx.Exec("SET LOCAL statement_timeout = '300ms'").Error)
		return tx.Exec("SELECT lease_acquire(?, 'node-1', '30 s', wait => '1 min')", lease).Error
	})
	same("timeout", sqlstate(err), "57014")
	same("waiters", s.admin("SELECT count(*) FROM lease_waiter"), "0")
	must(db.Exec("SELECT 7").Error)
	return ""
}

func gormTerminate(s stack, tx *gorm.DB) {
	var pid int
	must(tx.Raw("SELECT pg_backend_pid()").Row().Scan(&pid))
	s.admin(fmt.Sprintf("SELECT pg_terminate_backend(%d, 5000)", pid))
}

func gormLostConnection(s stack) string {
	db := gormOpen(s)
	defer db.Close()
	token := gormGranted(db, 30*time.Second)
	err := fenced(db, lease, token, func(tx *gorm.DB) error {
		must(gormPay(tx))
		gormTerminate(s, tx)
		return gormPay(tx)
	})
	same("a write on a lost connection", errors.Is(err, driver.ErrBadConn), true)
	same("coins", s.admin(coins), "0")
	must(fenced(db, lease, token, gormPay)) // the pool has replaced the connection
	same("coins", s.admin(coins), "300")
	return ""
}
