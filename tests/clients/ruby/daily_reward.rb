# frozen_string_literal: true

require_relative 'lease'

# [models]
class Player < ActiveRecord::Base
end

# Fenced by the migration. Saved as any other model, in Lease#transaction.
class Reward < ActiveRecord::Base
  belongs_to :player
end
# [end models]

# [job]
# Started on every node, once a day. Who takes over goes on where the last one has committed.
class DailyReward
  CHUNK = 1_000

  def self.run(holder, ttl: 30)
    Lease.hold('daily-reward', holder, ttl) do |lease|
      loop { break true if lease.transaction { pay_chunk(lease) } }
    end
  end

  # True when everybody is paid: then nobody is granted the lease before the next day.
  def self.pay_chunk(lease)
    day, after = progress
    players = Player.where('id > ?', after).order(:id).limit(CHUNK).to_a
    players.each { |player| Reward.create!(player: player, day: day, amount: 100) }
    state = { day: day, after: players.last&.id, done: players.empty? }.to_json
    Lease.value('SELECT lease_checkpoint(?, ?, ?)', lease.name, lease.token, state)
    return false if players.any?

    Lease.value('SELECT lease_complete(?, ?, until => ?::date + 1)', lease.name, lease.token, day)
  end

  # A day that was left unfinished comes before the server's today.
  def self.progress
    today, saved = Lease.values("SELECT current_date::text, lease_checkpoint('daily-reward')")
    saved = JSON.parse(saved || '{"done": true}')
    saved['done'] ? [today, 0] : saved.values_at('day', 'after')
  end
end
# [end job]
