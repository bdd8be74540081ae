#include "engine/base/torch_error.hpp"

#include <c10/util/Exception.h>

#include <new>
#include <optional>
#include <string_view>
#include <system_error>

#include "engine/base/thread_limit.hpp"

namespace troupe::engine {
namespace {

/// How many bytes LibTorch's allocator could not get, from its message: it has no error of its own
/// for that.
std::optional<std::string> bytes_refused(const std::string& text) {
  constexpr std::string_view words = "you tried to allocate ";
  const auto found = text.find(words);
  if (found == std::string::npos) return std::nullopt;
  const auto begin = found + words.size();
  const auto end = text.find_first_not_of("0123456789", begin);
  if (end == begin) return std::nullopt;
  return text.substr(begin, end - begin);
}

/// Without the allocator's settings and accounts, which fill a page.
std::string device_is_full(const std::string& text) {
  const auto line = text.substr(0, text.find('\n'));
  constexpr std::string_view last_of_use = "free.";
  const auto end = line.find(last_of_use);
  return line.substr(0, end == std::string::npos ? end : end + last_of_use.size()) +
         " Use a smaller micro-batch, or recompute activations (pipeline.recompute)";
}

/// The operator that LibTorch refuses for its order of additions; empty: it refuses none.
std::string not_deterministic(const std::string& text) {
  const auto end = text.find(" does not have a deterministic implementation");
  return end == std::string::npos ? "" : text.substr(0, end);
}

/// The same error, if it is that the system starts no thread; else null.
const std::system_error* refused_thread(const std::exception& problem) {
  const auto* const refused = dynamic_cast<const std::system_error*>(&problem);
  return refused && refused->code() == std::errc::resource_unavailable_try_again ? refused
                                                                                 : nullptr;
}

}  // namespace

errc code_of(const std::exception& problem) {
  return refused_thread(problem) ? errc::io_failed : errc::handler_failed;
}

std::string reason_of(const std::exception& problem) {
  if (dynamic_cast<const std::bad_alloc*>(&problem)) return "there is no memory left";
  if (const auto* const refused = refused_thread(problem)) {
    const std::string said = refused->what(), words = "no thread can be started";
    const std::string what = said.starts_with(words) ? said : words + ": " + said;
    constexpr std::uint64_t some = 64;
    return what + " " + raise_threads(some);
  }
  const auto* torch = dynamic_cast<const c10::Error*>(&problem);
  const std::string text = torch ? torch->what_without_backtrace() : problem.what();
  if (dynamic_cast<const c10::OutOfMemoryError*>(&problem)) return device_is_full(text);
  if (const auto bytes = torch ? bytes_refused(text) : std::nullopt)
    return "there is no memory for a tensor of " + *bytes + " bytes";
  if (const auto which = not_deterministic(text); !which.empty())
    return which +
           " does not give the same bits each time: leave it out, or set "
           "model.deterministic = false (--no-deterministic)";
  return text.substr(0, text.find('\n'));
}

}  // namespace troupe::engine
