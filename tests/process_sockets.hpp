#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

namespace troupe::messages::testing {

/// The inodes of the sockets that a process has open.
inline std::set<std::string> sockets_of(pid_t process) {
  namespace fs = std::filesystem;
  std::set<std::string> out;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(process) + "/fd")) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry.path(), gone).string();
    if (!gone && target.starts_with("socket:[")) out.insert(target.substr(8, target.size() - 9));
  }
  return out;
}

/// The lines of /proc/PID/net/`table` that are of the process's own sockets, in words.
inline std::vector<std::vector<std::string>> lines_of(pid_t process, const std::string& table,
                                                      std::size_t inode_word) {
  const std::set<std::string> own = sockets_of(process);
  std::ifstream file("/proc/" + std::to_string(process) + "/net/" + table);
  std::vector<std::vector<std::string>> out;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream text(line);
    std::vector<std::string> words;
    for (std::string word; text >> word;) words.push_back(word);
    if (words.size() > inode_word && own.contains(words[inode_word])) out.push_back(words);
  }
  return out;
}

/// The ports at which a process listens, or takes datagrams, of these tables.
inline std::set<int> ports_of(pid_t process, const std::vector<std::string>& tables) {
  std::set<int> out;
  for (const std::string& table : tables) {
    for (const auto& words : lines_of(process, table, 9)) {
      const bool listens = table.starts_with("udp") || words[3] == "0A";
      if (listens) out.insert(std::stoi(words[1].substr(words[1].rfind(':') + 1), nullptr, 16));
    }
  }
  return out;
}

}  // namespace troupe::messages::testing
