/// \file
/// Catch2 keeps one test's state without a lock: an assertion in a second thread breaks it now and
/// then, in another place than where it was written. Linked into every test program, this listener
/// makes such an assertion fail each time, and names its line.
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <catch2/catch_assertion_info.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>

namespace {

class assertion_thread : public Catch::EventListenerBase {
 public:
  using EventListenerBase::EventListenerBase;

  void assertionStarting(const Catch::AssertionInfo& info) override {
    if (std::this_thread::get_id() == tests_) return;
    std::fprintf(
        stderr,
        "%s:%zu: an assertion outside the test's thread: hand the value over, assert there\n",
        info.lineInfo.file, info.lineInfo.line);
    std::abort();
  }

 private:
  const std::thread::id tests_ = std::this_thread::get_id();
};

}  // namespace

CATCH_REGISTER_LISTENER(assertion_thread)
