#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace troupe::tests {

/// A disk whose host may lose power at any moment. What was not synced is lost then, or not, as
/// chance has it: of a file its bytes, and of a folder any of the names that it has got, changed or
/// lost since. The disk has folders, and in those files and further folders.
class simulated_disk {
 public:
  using folder_id = std::size_t;
  static constexpr folder_id root = 0;

  simulated_disk() { folders_.emplace_back(); }

  folder_id make_folder(folder_id in, const std::string& name);
  void write_file(folder_id in, const std::string& name, const std::string& text);
  /// Exchanges what has the two names, or renames where nothing has the other.
  void take_name(folder_id in, const std::string& from, const std::string& to);
  void remove_file(folder_id in, const std::string& name);
  void sync(folder_id folder);
  void sync_file(folder_id in, const std::string& name);

  [[nodiscard]] std::vector<std::string> names(folder_id in) const;
  [[nodiscard]] std::optional<folder_id> folder(folder_id in, const std::string& name) const;
  /// Nothing: there is none, or it is torn.
  [[nodiscard]] std::optional<std::string> text(folder_id in, const std::string& name) const;

  void lose_power(std::mt19937_64& random);

 private:
  /// A file, or a folder.
  struct item {
    bool is_folder = false;
    std::size_t which = 0;
  };
  using names_of_items = std::map<std::string, item>;
  /// A name that is another one's now, or nobody's; with `other` they are exchanged.
  struct change {
    std::string name;
    std::optional<item> now = {};
    std::optional<std::string> other = {};
  };
  struct folder_state {
    names_of_items now, synced;
    std::vector<change> changes;  // since it was synced
  };
  struct file_state {
    std::string now;
    bool is_synced = false, is_torn = false;
  };

  void apply(folder_id in, const change& what);
  static void apply(names_of_items& to, const change& what);

  std::vector<folder_state> folders_;
  std::vector<file_state> files_;
};

}  // namespace troupe::tests
