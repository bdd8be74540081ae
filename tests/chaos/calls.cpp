#include "tests/chaos/calls.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <stdexcept>
#include <tuple>

#include "tests/multiprocess/refusals/call_places.hpp"

namespace troupe::chaos {
namespace {

namespace fs = std::filesystem;
using tests::call_record;
using tests::fallible_calls;

std::unique_ptr<call_record> read_record(const fs::path& file) {
  auto record = std::make_unique<call_record>();
  std::ifstream stream(file, std::ios::binary);
  const bool is_whole =
      static_cast<bool>(stream.read(reinterpret_cast<char*>(record.get()), sizeof(call_record)));
  return is_whole ? std::move(record) : nullptr;
}

std::vector<std::unique_ptr<call_record>> read_records(const run_folder& folder) {
  std::vector<std::unique_ptr<call_record>> all;
  for (const auto& entry : fs::directory_iterator(folder.records()))
    if (auto record = read_record(entry.path())) all.push_back(std::move(record));
  return all;
}

/// "stage-1" is a stage.
std::string kind_of(const std::string& process) {
  return process.substr(0, process.find('-'));
}

/// What docs/failures.md says cannot be turned into an error: UCX ends the process where it lacks
/// what its own threads need, CAF where one of its threads cannot be started.
bool is_of_library(const failing_call& what, const std::string& log) {
  const bool by_ucx =
      what.frames.starts_with("libuc") && (log.find("ucs_fatal_error") != std::string::npos ||
                                           log.find("ucs_handle_error") != std::string::npos);
  const bool by_caf = what.call == "pthread_create" &&
                      what.frames.find(" libcaf_core") != std::string::npos &&
                      log.find("terminate called") != std::string::npos;
  return by_ucx || by_caf;
}

/// LibTorch reads eight bytes of /dev/urandom, which the system never interrupts.
bool is_never_interrupted(const failing_call& what, const std::string& log) {
  return what.call == "read" && what.frames.starts_with("libc10.so") &&
         log.find("read from /dev/urandom") != std::string::npos;
}

std::string hexadecimal(std::uint64_t number) {
  char text[20];
  std::snprintf(text, sizeof text, "%llx", static_cast<unsigned long long>(number));
  return text;
}

std::map<std::string, std::string> environment_of(const run_folder& folder) {
  return {{"LD_PRELOAD", TROUPE_REFUSING_CALLS}, {"TROUPE_CALLS", folder.records()}};
}

bool has_failed(const run_folder& folder) {
  for (const auto& record : read_records(folder))
    if (record->has_failed != 0) return true;
  return false;
}

/// Where the last line of a run with exit code 3 says the weights are.
fs::path place_elsewhere(const std::string& last_line) {
  static const std::regex where("the weights are in ([^;]+)");
  std::smatch match;
  return std::regex_search(last_line, match, where) ? fs::path(match[1].str()) : fs::path();
}

std::string fault_of_saving(const subject& subject, const outcome& ended,
                            const run_folder& folder) {
  if (ended.code == 0) return fault_of_weights(subject, folder.weights());
  if (ended.code == 3) return fault_of_weights(subject, place_elsewhere(ended.last_line()));
  return fs::exists(folder.weights()) ? fault_of_weights(subject, folder.weights()) : "";
}

struct row {
  std::size_t tried = 0, went_on = 0, failed = 0, refused = 0, elsewhere = 0, not_made = 0;
  std::size_t without_reason = 0, of_library = 0, bad = 0;

  void add(const tried_call& one) {
    ++tried;
    if (one.is_of_library) ++of_library;
    if (!one.complaints.empty()) ++bad;
    if (!one.was_made)
      ++not_made;
    else if (one.code == 0)
      ++went_on;
    else if (one.code == 1)
      ++failed;
    else if (one.code == 2)
      ++refused;
    else
      ++elsewhere;
    if (one.was_made && !one.says_why && !one.is_of_library) ++without_reason;
  }
  void print(const std::string& name) const {
    std::printf("%-18s %6zu %8zu %7zu %7zu %7zu %9zu %10zu %9zu %5zu\n", name.c_str(), tried,
                went_on, failed, refused, elsewhere, not_made, without_reason, of_library, bad);
  }
};

}  // namespace

std::string failing_call::to_repeat() const {
  return "calls --subject " + subject + " --process " + process + " --call " + call + " --place " +
         hexadecimal(place) + " --number " + std::to_string(number) + " --errno " +
         std::to_string(reason);
}

std::vector<failing_call> count_calls(const subject& what, seconds bound) {
  const run_folder folder;
  const auto ended = run(what, folder, environment_of(folder), {}, bound);
  if (ended.code != 0 || ended.signal != 0 || ended.is_late)
    throw std::runtime_error("an undisturbed run of " + what.name + " failed:\n" + ended.text());
  auto records = read_records(folder);
  std::ranges::sort(records, {}, [](const auto& each) { return std::string(each->process); });
  std::set<std::tuple<std::string, std::string, std::uint64_t>> known;
  std::vector<failing_call> found;
  for (const auto& record : records) {
    for (std::uint32_t i = 0; i < record->places_used; ++i) {
      const auto& each = record->places[i];
      const auto& call = fallible_calls[each.call];
      if (!known.emplace(kind_of(record->process), call.name, each.place).second) continue;
      found.push_back({.subject = what.name,
                       .process = record->process,
                       .call = call.name,
                       .place = each.place,
                       .number = each.count,  // so many; the caller chooses one
                       .reason = call.reason,
                       .frames = each.frames});
    }
  }
  return found;
}

tried_call try_call(const failing_call& what, seconds bound) {
  const auto& subject = subject_of(what.subject);
  const run_folder folder;
  auto environment = environment_of(folder);
  environment.insert({{"TROUPE_FAIL_IN", what.process},
                      {"TROUPE_FAIL_CALL", what.call},
                      {"TROUPE_FAIL_PLACE", hexadecimal(what.place)},
                      {"TROUPE_FAIL_NUMBER", std::to_string(what.number)},
                      {"TROUPE_FAIL_ERRNO", std::to_string(what.reason)}});
  const auto ended = run(subject, folder, environment, {}, bound);
  tried_call tried{.what = what,
                   .was_made = has_failed(folder),
                   .code = ended.code,
                   .says_why = true,
                   .last_line = ended.last_line(),
                   .complaints = complaints(subject, ended, {}),
                   .log = ended.text()};
  if (auto fault = fault_of_saving(subject, ended, folder); !fault.empty())
    tried.complaints.push_back(fault);
  const std::string text = ended.text();
  const bool must_go_on = what.reason == EINTR && !is_never_interrupted(what, text);
  if (ended.code != 0 && (!tried.was_made || must_go_on))
    tried.complaints.push_back(tried.was_made ? "it ended because a call was interrupted"
                                              : "it ended although no call failed");
  if (tried.was_made && is_of_library(what, text)) {
    tried.is_of_library = true;
    tried.complaints.clear();
  }
  const bool of_memory = text.find("there is no memory for") != std::string::npos;
  tried.says_why =
      ended.code == 0 || of_memory || text.find(std::strerror(what.reason)) != std::string::npos;
  return tried;
}

std::size_t report(const std::vector<tried_call>& all) {
  std::map<std::string, row> rows;
  row sum;
  for (const auto& each : all) {
    rows[each.what.call].add(each);
    sum.add(each);
  }
  std::printf("%-18s %6s %8s %7s %7s %7s %9s %10s %9s %5s\n", "call", "tried", "went on", "code 1",
              "code 2", "3 and 4", "not made", "no reason", "UCX, CAF", "bad");
  for (const auto& [name, each] : rows) each.print(name);
  sum.print("all");
  for (const auto& each : all) {
    if (each.complaints.empty()) continue;
    std::printf("\nbad: ./dev chaos %s\n  made by %s\n", each.what.to_repeat().c_str(),
                each.what.frames.c_str());
    for (const auto& complaint : each.complaints) std::printf("  %s\n", complaint.c_str());
    std::printf("  last line: %s\n", each.last_line.c_str());
  }
  for (const auto& each : all) {
    const bool is_vague = each.complaints.empty() && each.was_made && !each.says_why;
    if (!is_vague && !each.is_of_library) continue;
    std::printf("%s: ./dev chaos %s\n  made by %s\n  last line: %s\n",
                each.is_of_library ? "ended by UCX or CAF" : "no reason",
                each.what.to_repeat().c_str(), each.what.frames.c_str(), each.last_line.c_str());
  }
  std::fflush(stdout);
  return sum.bad;
}

}  // namespace troupe::chaos
