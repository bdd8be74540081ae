#include <algorithm>
#include <array>

#include "cluster/launch/agents/agent.hpp"
#include "cluster/launch/agents/session_core.hpp"
#include "messages/base/printable.hpp"

namespace troupe::cluster {
namespace {

constexpr int shell_cannot_execute = 126;
constexpr int shell_cannot_find = 127;
constexpr int ssh_failed = 255;
/// In seconds. A first packet that is lost is sent again after 1 s and 3 s, and a round trip may
/// take some hundred milliseconds.
constexpr std::string_view connect_timeout = "ConnectTimeout=4";

/// What ssh writes, what that means and what to do about it. HOST stands for the host.
struct ssh_failure {
  std::string_view written;
  std::string_view meaning;
  bool is_users = true;  ///< Something in what the user gave is to change.
};

constexpr std::string_view ssh_options_refused =
    "ssh cannot use what it is given; see ssh_options in [cluster], and ssh's config";

constexpr std::array ssh_failures = std::to_array<ssh_failure>({
    {"REMOTE HOST IDENTIFICATION HAS CHANGED",
     "its host key is not the one that ssh knows; if that is right, take the old one out "
     "(ssh-keygen "
     "-R HOST) and connect once by hand"},
    {"Host key verification failed",
     "its host key is unknown to ssh; connect once by hand (ssh HOST) and check the key, or put it "
     "into known_hosts"},
    {"Permission denied",
     "it refuses our key, and nobody is there to type a password; put a key of yours into "
     "authorized_keys there, and see that `ssh -o BatchMode=yes HOST true` works"},
    {"Too many authentication failures",
     "it refuses our keys; name the one to use (IdentityFile in ssh's config)"},
    {"Could not resolve hostname",
     "nobody knows this name; see `host` of its [[node]], DNS, /etc/hosts and ssh's config"},
    {"Connection refused",
     "no ssh server listens there; start it (sshd), or name its port in ssh_options or ssh's "
     "config"},
    {"No route to host", "there is no route to it; see its address, its network and firewalls"},
    {"Network is unreachable", "there is no route to it; see this machine's network"},
    {"timed out",
     "it does not answer; see whether it is up, its address, and firewalls in between; if it only "
     "takes longer, give ssh more seconds: ssh_options = [\"-o\", \"ConnectTimeout=30\"] in "
     "[cluster]"},
    {"Can't open user config file", ssh_options_refused},
    {"Bad configuration option", ssh_options_refused},
    {"bad configuration options", ssh_options_refused},
    {"unknown option -- ", ssh_options_refused},
    {"Bad port", ssh_options_refused},
    {"Connection reset", "it closed the connection; see its sshd's log", false},
    {"Connection closed", "it closed the connection; see its sshd's log", false},
    {"closed by remote host", "it closed the connection; see its sshd's log", false},
});

std::string with_host(std::string_view text, const std::string& host) {
  std::string out(text);
  for (auto at = out.find("HOST"); at != std::string::npos; at = out.find("HOST", at + host.size()))
    out.replace(at, 4, host);
  return out;
}

/// The line with what went wrong: what the agent wrote itself, else the last one that is no rule of
/// mpirun's; empty: there is none.
std::string line_to_quote(const std::deque<std::string>& lines) {
  std::string chosen;
  for (const auto& line : lines) {
    if (line.starts_with(agent_mark)) return line;
    if (!line.starts_with("---")) chosen = line;
  }
  return chosen;
}

const ssh_failure* find_failure(const std::deque<std::string>& errors) {
  for (const auto& known : ssh_failures)
    for (const auto& line : errors)
      if (line.find(known.written) != std::string::npos) return &known;
  return nullptr;
}

/// What the system's loader could not do for the program; empty: it has not complained.
std::string explain_loader(const agent_place& place, const std::deque<std::string>& errors) {
  for (const auto& line : errors) {
    if (line.find("error while loading shared libraries") != std::string::npos)
      return "a library that the program " + place.program + " needs is not there (" + line +
             "), and ssh passes no LD_LIBRARY_PATH; install its package on that host, or have the "
             "launch copy the libraries that belong to no package, LibTorch among them (troupe "
             "launch --push-all)";
    if (line.find("version `GLIBC") != std::string::npos)
      return "its C or C++ library is too old for the program " + place.program + " (" + line +
             "); build the program on the oldest of the hosts";
  }
  return "";
}

/// What an agent says itself of why it ends, with what to do; empty: it has said no such thing.
std::string own_words(const std::deque<std::string>& errors) {
  for (const auto& line : errors)
    if (line.starts_with(agent_mark) && line.find("; ") != std::string::npos)
      return line.substr(agent_mark.size());
  return "";
}

/// Whether something other than an agent of ours ran there and ended: ssh has a code of its own for
/// where it could run nothing.
bool has_run_another(const agent_place& place, const child_exit& how,
                     const std::deque<std::string>& errors) {
  const bool is_known = place.host.empty() || (place.carrier == "ssh" && how.code != ssh_failed);
  return is_known && how.signal == 0 && !place.program.empty() &&
         std::ranges::none_of(errors,
                              [](const auto& line) { return line.starts_with(agent_mark); });
}

}  // namespace

std::vector<std::string> ssh_words_of_line(const std::string& host,
                                           const std::vector<std::string>& options,
                                           const std::string& line) {
  std::vector<std::string> words{"-T", "-o", "BatchMode=yes"};
  words.insert(words.end(), options.begin(), options.end());
  // Of one option ssh takes the first that it gets.
  words.insert(words.end(), {"-o", std::string(connect_timeout), "--", host, line});
  return words;
}

std::vector<std::string> ssh_words(const std::string& host, const std::vector<std::string>& options,
                                   const std::string& program, const std::string& library_path) {
  const std::string first =
      library_path.empty() ? "exec " : "exec env LD_LIBRARY_PATH=" + shell_word(library_path) + " ";
  return ssh_words_of_line(host, options, first + shell_word(program) + " --agent");
}

error explain_start(const agent_place& place, const child_exit& how,
                    const std::deque<std::string>& errors,
                    const std::deque<std::string>& shell_out) {
  const auto refused = [&place](const std::string& why) {
    return error{errc::address_unavailable, place.text() + ": " + why};
  };
  const auto lost = [&place](const std::string& why) {
    return error{errc::peer_lost, place.text() + ": " + why};
  };
  if (const auto said = own_words(errors); !said.empty()) return refused(said);
  if (const auto known = explain_loader(place, errors); !known.empty()) return refused(known);
  if (const auto known = explain_scheduler(place, errors); !known.empty()) return refused(known);
  if (how.code == shell_cannot_find || how.code == shell_cannot_execute)
    return refused(with_quote("the program " + place.program +
                                  " cannot be started there; copy it to that host, or name its "
                                  "path with `program` in its [[node]]",
                              line_to_quote(errors)));
  const auto* known =
      how.code == ssh_failed && !place.host.empty() ? find_failure(errors) : nullptr;
  if (known != nullptr) {
    const auto why = with_quote(with_host(known->meaning, place.host), line_to_quote(errors));
    return known->is_users ? refused(why) : lost(why);
  }
  child_exit named = how;
  const auto& last = errors.empty() ? shell_out : errors;
  if (has_run_another(place, how, errors)) {
    named.name = "the program " + place.program;
    return refused(with_quote(describe(named) +
                                  " without having answered as an agent; name the path of the one "
                                  "that runs here, " +
                                  place.own_program +
                                  ", with `program` in its [[node]], or see what `" +
                                  place.trial() + "` does",
                              line_to_quote(last)));
  }
  named.name = place.host.empty() ? "its agent" : place.carrier + ", or what it ran there,";
  return lost(with_quote(
      describe(named) + " before the agent answered; see what `" + place.trial() + "` does",
      line_to_quote(last)));
}

std::string with_quote(std::string known, const std::string& line) {
  if (line.empty()) return known;
  return known.insert(std::min(known.find("; "), known.size()), " (" + line + ")");
}

}  // namespace troupe::cluster
