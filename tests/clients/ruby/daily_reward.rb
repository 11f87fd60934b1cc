# frozen_string_literal: true

# [models]
require 'active_record'

class Player < ActiveRecord::Base
end

# Fenced by the migration. Saved as any other model, in Lease#transaction.
class Reward < ActiveRecord::Base
  belongs_to :player
end
# [end models]

# [job]
require 'json'
require 'socket'
require_relative 'lease'

# Called on every node every few minutes. Who takes over goes on where the last one has committed.
class DailyReward
  NAME = 'daily-reward'
  CHUNK = 1_000
  # A day begins here: also at 23:55 it is the same one before and after midnight.
  ZONE = 'Europe/Berlin'
  STARTS = '00:05'

  # One line for what happened; what went wrong is on standard error, which cron mails.
  def self.call
    puts "#{NAME}: #{run("#{Socket.gethostname}:#{Process.pid}")}"
  rescue Lease::Lost, ActiveRecord::ActiveRecordError => e
    abort "#{NAME}: #{e.class}: #{e.message.squish}"
  end

  def self.run(holder, ttl: 30)
    done = Lease.hold(NAME, holder, ttl) do |lease|
      loop do
        day = lease.transaction { pay_chunk(lease) }
        break "#{day} is done" if day
      end
    end
    done || Lease.status(NAME)
  end

  # The day, when everybody is paid: then nobody is granted the lease before the next one begins.
  def self.pay_chunk(lease)
    day, after = progress
    players = Player.where('id > ?', after).order(:id).limit(CHUNK).to_a
    players.each { |player| Reward.create!(player: player, day: day, amount: 100) }
    state = { day: day, after: players.last&.id, done: players.empty?, by: lease.holder }.to_json
    Lease.value('SELECT lease_checkpoint(?, ?, ?)', NAME, lease.token, state)
    return if players.any?

    Lease.value('SELECT lease_complete(?, ?, until => (?::date + 1 + ?::interval) AT TIME ZONE ?)',
                NAME, lease.token, day, STARTS, ZONE)
    day
  end

  # The day is the database's, and kept in the checkpoint. One that was left unfinished comes first.
  def self.progress
    today, saved = Lease.values('SELECT (now() AT TIME ZONE ? - ?::interval)::date::text, lease_checkpoint(?)', ZONE, STARTS, NAME)
    saved = JSON.parse(saved || '{"done": true}')
    saved['done'] ? [today, 0] : saved.values_at('day', 'after')
  end
end
# [end job]
