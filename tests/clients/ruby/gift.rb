# frozen_string_literal: true

# [once]
require 'active_record'
require_relative 'lease'

# All of it in one transaction: no lease.
class Gift < ActiveRecord::Base
  # True for who has done it, and false where it was done already. The day is the database's, in a zone with a name.
  def self.give(day = Lease.value("SELECT (now() AT TIME ZONE 'Europe/Berlin')::date::text"))
    transaction do
      next false unless Lease.value('SELECT once(?)', "gifts:#{day}")

      connection.execute(sanitize_sql_array(['INSERT INTO gifts (player_id, day) SELECT id, ? FROM players', day]))
      true
    end
  end
end
# [end once]
