#include "tests/fake_device/order.hpp"

#include <algorithm>
#include <utility>

namespace troupe::tests::fake_device {
namespace {

void join(vector_clock& into, const vector_clock& from) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
}

}  // namespace

std::string name_of_stream(int stream) {
  return "fake:" + std::to_string(stream / streams_per_device) + " stream " +
         std::to_string(stream % streams_per_device);
}

void order::begin(int stream, const std::string& task) {
  auto& clock = clocks_.at(index(stream));
  join(clock, host_);
  ++clock[index(stream)];
  tasks_[index(stream)] = task;
}

vector_clock order::record(int stream) {
  begin(stream, "an event");
  return clocks_.at(index(stream));
}

void order::block(int stream, const vector_clock& event) {
  join(clocks_.at(index(stream)), event);
}

void order::host_waits(const vector_clock& event) {
  join(host_, event);
}

bool order::is_known_to_host(const stamp& task) const {
  return task.stream < 0 || host_[index(task.stream)] >= task.tick;
}

bool order::is_known_to(int stream, const stamp& task) const {
  return task.stream < 0 || task.stream == stream ||
         clocks_.at(index(stream))[index(task.stream)] >= task.tick;
}

stamp order::now(int stream) const {
  return {stream, clocks_.at(index(stream))[index(stream)], tasks_.at(index(stream))};
}

void order::expect_order(const stamp& earlier, const char* did, int stream, const char* does) {
  if (is_known_to(stream, earlier)) return;
  auto race = tasks_[index(stream)] + " on " + name_of_stream(stream) + " " + does + " what " +
              earlier.task + " on " + name_of_stream(earlier.stream) + " " + did +
              ", and nothing orders them";
  if (races_.empty() || races_.back() != race) races_.push_back(std::move(race));
}

void order::allocated(const void* memory, int stream) {
  pieces_[memory] = {.home = stream};
}

void order::recorded(const void* memory, int stream) {
  if (const auto found = pieces_.find(memory); found != pieces_.end())
    found->second.recorded.insert(stream);
}

void order::read(const void* memory, int stream) {
  const auto found = pieces_.find(memory);
  if (found == pieces_.end()) return;
  expect_order(found->second.write, "writes", stream, "reads");
  found->second.reads[stream] = now(stream);
}

void order::written(const void* memory, int stream) {
  const auto found = pieces_.find(memory);
  if (found == pieces_.end()) return;
  expect_order(found->second.write, "writes", stream, "writes");
  for (const auto& [reader, task] : found->second.reads)
    expect_order(task, "reads", stream, "writes");
  found->second.write = now(stream);
  found->second.reads.clear();
}

void order::freed(const void* memory) {
  const auto found = pieces_.find(memory);
  if (found == pieces_.end()) return;
  const auto& [home, write, reads, recorded] = found->second;
  const auto check = [&, home = home, &kept = recorded](const stamp& use) {
    if (is_known_to(home, use) || is_known_to_host(use) || kept.contains(use.stream)) return;
    races_.push_back("memory of " + name_of_stream(home) + " is freed while " + use.task + " on " +
                     name_of_stream(use.stream) + " may use it, which was not recorded");
  };
  check(write);
  for (const auto& [reader, use] : reads) check(use);
  pieces_.erase(found);
}

}  // namespace troupe::tests::fake_device
