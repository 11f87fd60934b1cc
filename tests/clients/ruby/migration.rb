# frozen_string_literal: true

require 'active_record'

# [migration]
class CreateRewards < ActiveRecord::Migration[6.1]
  def up
    enable_extension 'lock_ext' # a superuser's right
    create_table(:players) { |t| t.string :name }
    create_table :rewards do |t|
      t.references :player, null: false
      t.date :day, null: false
      t.integer :amount, null: false
      t.bigint :token
      t.index %i[player_id day], unique: true
    end
    execute "SELECT fence_attach('rewards', 'daily-reward', 'token')"
    create_table(:prices) { |t| t.integer :amount, null: false }
    execute "SELECT fence_attach('prices', 'prices')"
    create_table :gifts do |t|
      t.references :player, null: false
      t.date :day, null: false
    end
  end

  def down
    %i[gifts prices rewards players].each { |table| drop_table(table) }
  end
end
# [end migration]
