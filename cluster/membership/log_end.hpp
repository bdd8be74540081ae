#pragma once

#include <signal.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/launch/child_process.hpp"
#include "cluster/launch/last_word.hpp"
#include "cluster/launch/process_group.hpp"
#include "cluster/membership/node_launcher.hpp"
#include "cluster/membership/understudies_core.hpp"
#include "messages/base/error.hpp"
#include "messages/base/exit_code.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {

/// Says in the log how a node's process ended; `expected`: it was told to. One that crashes on its
/// way out spoils nothing, but nobody else would hear of it.
inline void log_end(const child_exit& how, bool expected) {
  const bool crashed = how.signal != 0 && how.signal != SIGTERM && how.signal != SIGKILL;
  if (crashed && expected)
    log::warning(describe(how));
  else
    log::debug(describe(how));
}

/// The loss of a node whose process has ended; `why`: what it said of that itself, if anything.
inline error loss_of(const child_exit& how, const std::string& why) {
  const bool is_refusal = how.signal == 0 && how.code == exit_refused;
  return {is_refusal ? errc::bad_config : errc::peer_lost,
          why.empty() ? describe(how) : describe(how) + ": " + why};
}

/// Whether the run will say of this process why it has ended, after these losses: it is the first
/// that is no understudy's.
inline bool is_reason(const std::string& process, const std::vector<node_end>& before) {
  return !understudies_core::is_one(process) && std::ranges::all_of(before, [](const auto& each) {
    return understudies_core::is_one(each.node);
  });
}

/// What processes have said last, of why they end, until somebody says it for them: see
/// last_word_mark.
class last_words {
 public:
  /// What a line says if it is a process's last word; nothing: it is any other line.
  std::optional<std::string> heard(std::string_view process, output_stream stream,
                                   std::string_view line) {
    if (stream != output_stream::err || !line.starts_with(last_word_mark)) return std::nullopt;
    line.remove_prefix(last_word_mark.size());
    return said_[std::string(process)] = line;
  }

  /// Empty: it has said none that was not taken.
  std::string take(const std::string& process) {
    auto taken = said_.extract(process);
    return taken ? std::move(taken.mapped()) : std::string();
  }

 private:
  std::map<std::string, std::string> said_;
};

}  // namespace troupe::cluster
