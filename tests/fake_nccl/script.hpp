#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/collective/nccl/abi.hpp"

namespace troupe::tests::fake_nccl {

/// What is to go wrong at one call.
struct mishap {
  enum class kind { die, hang, stall, stuck, fail, async } what;
  engine::nccl::status code = engine::nccl::status::success;
  std::string text;
};

/// Counts a call of `function`, and says what is to go wrong at it. From any thread.
std::optional<mishap> count_call(std::string_view function);

/// How often it was called.
int calls_of(std::string_view function);

/// Blocks until fake_release was called.
void hang();
void release_hangs();

/// Notes a use that NCCL forbids.
void note_wrong_use(const std::string& line);
const char* wrong_uses();

}  // namespace troupe::tests::fake_nccl
