// [model]
package main

import (
	"time"

	"github.com/jinzhu/gorm"
)

type Player struct {
	ID    int `gorm:"primary_key"`
	Coins int
}

func (Player) TableName() string { return "player" }

// Entry carries the token itself: whoever wrote the row last. Set it to your own token before each save.
type Entry struct {
	ID     int `gorm:"primary_key"`
	Amount int
	Token  int64
}

func (Entry) TableName() string { return "entry" }

// tryLease gives no token when somebody else has the lease.
func tryLease(db *gorm.DB, lease, node string, ttl time.Duration) (token *int64, err error) {
	err = db.Raw("SELECT lease_acquire(?, ?, ?)", lease, node, ttl.String()).Row().Scan(&token)
	if err == nil && token != nil { // a predecessor that is frozen in a transaction would keep its row locks
		err = db.Exec("SELECT count(*) FROM lease_evict(?, ?)", lease, *token).Error
	}
	return token, err
}

// fenced runs the work in a transaction that writes under the token. Look at the error: only nil is committed.
func fenced(db *gorm.DB, lease string, token int64, work func(tx *gorm.DB) error) error {
	return db.Transaction(func(tx *gorm.DB) error {
		if err := tx.Exec("SELECT lease_fence(?, ?)", lease, token).Error; err != nil {
			return err
		}
		return work(tx)
	})
}

// [end model]
