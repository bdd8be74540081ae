#include "cluster/doctor/edges/channel.hpp"

#include <algorithm>
#include <chrono>

namespace troupe::cluster::doctor {
namespace {

using clock = std::chrono::steady_clock;

constexpr double latency_seconds = 0.05;
constexpr double rate_seconds = 0.1;
constexpr double noticeable_seconds = 0.01;
constexpr int warm_up = 5;
constexpr int least_trips = 5;
constexpr int most_trips = 2000;
constexpr std::size_t tried_bytes = std::size_t{64} << 10;
constexpr std::size_t push_bytes = std::size_t{1} << 20;
constexpr int most_blocks = 512;

double seconds_since(clock::time_point begin) {
  return std::chrono::duration<double>(clock::now() - begin).count();
}

result<double> first_trips_us(channel& by) {
  const auto begin = clock::now();
  if (auto first = by.round_trips(least_trips); !first) return tl::unexpected(first.error());
  return std::max(seconds_since(begin) / least_trips, 1e-7) * 1e6;
}

result<double> round_trip_us(channel& by) {
  if (auto warm = by.round_trips(warm_up); !warm) return tl::unexpected(warm.error());
  const auto each = first_trips_us(by);
  if (!each) return each;
  const int count =
      std::clamp(static_cast<int>(latency_seconds * 1e6 / *each), least_trips, most_trips);
  const auto begin = clock::now();
  if (auto all = by.round_trips(count); !all) return tl::unexpected(all.error());
  return seconds_since(begin) / count * 1e6;
}

/// From as few blocks as take a noticeable time to as many as take the whole of it.
result<double> megabytes_per_second(channel& by) {
  for (int count = 1;;) {
    const auto begin = clock::now();
    if (auto sent = by.push(push_bytes, count); !sent) return tl::unexpected(sent.error());
    const double seconds = std::max(seconds_since(begin), 1e-9);
    if (seconds >= rate_seconds || count >= most_blocks)
      return static_cast<double>(push_bytes) * count / seconds / 1e6;
    const double wanted =
        seconds < noticeable_seconds ? 4.0 * count : 1.2 * count * rate_seconds / seconds + 1;
    count = static_cast<int>(std::min<double>(wanted, most_blocks));
  }
}

using figure = std::function<result<double>(channel&)>;

/// What the figures of small and of large messages are, or what goes wrong with the first of them.
flow_facts small_then_large(channel& by, const std::string& name,
                            const std::function<void(const flow_facts&)>& so_far,
                            const figure& of_small, const figure& of_large) {
  flow_facts out{.by = name};
  const auto rate = of_small(by).and_then([&](double trip) {
    out.round_trip_us = trip;
    so_far(out);
    return of_large(by);
  });
  out.megabytes_per_second = rate.value_or(0);
  if (!rate) out.error = rate.error().text;
  return out;
}

}  // namespace

flow_facts try_out(channel& by, const std::string& name,
                   const std::function<void(const flow_facts&)>& so_far) {
  return small_then_large(by, name, so_far, &first_trips_us, [](channel& of) -> result<double> {
    const auto begin = clock::now();
    if (auto sent = of.push(tried_bytes, 1); !sent) return tl::unexpected(sent.error());
    return static_cast<double>(tried_bytes) / std::max(seconds_since(begin), 1e-9) / 1e6;
  });
}

flow_facts measure(channel& by, const std::string& name,
                   const std::function<void(const flow_facts&)>& so_far) {
  return small_then_large(by, name, so_far, &round_trip_us, &megabytes_per_second);
}

}  // namespace troupe::cluster::doctor
