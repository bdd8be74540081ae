// What stages had of their devices' memory, beside what was predicted.

#include "cluster/training/needs/device_peaks_core.hpp"

#include <catch2/catch_test_macros.hpp>

namespace {

using troupe::cluster::device_peak_table;

constexpr double mib = 1 << 20;

}  // namespace

TEST_CASE("The peak of each stage's device memory stands beside the predicted one") {
  CHECK(device_peak_table({{"stage-0", "stage-0", 90 * mib, 100 * mib},
                           {"stage-1", "stage-1", 1300 * mib, 1000 * mib}}) ==
        "stage    peak device memory  predicted  off by\n"
        "stage-0  90 MiB              100 MiB    -10%\n"
        "stage-1  1300 MiB            1000 MiB   +30%\n");
  CHECK(device_peak_table({{"stage-0", "stage-0", 90 * mib}}) ==
        "stage    peak device memory\n"
        "stage-0  90 MiB\n");
}

TEST_CASE("Stages whose memory is counted together have one line, and those on the CPU none") {
  CHECK(device_peak_table({{"stage-0", "cuda:0", 90 * mib, 50 * mib},
                           {"stage-1", "cuda:1", 30 * mib, 20 * mib},
                           {"stage-2", "cuda:0", 100 * mib, 50 * mib},
                           {"stage-3", "cpu", 0, 70 * mib}}) ==
        "stage             peak device memory  predicted  off by\n"
        "stage-0, stage-2  100 MiB             100 MiB    +0%\n"
        "stage-1           30 MiB              20 MiB     +50%\n");
  CHECK(device_peak_table({{"stage-0", "cpu", 0, 70 * mib}}).empty());
  CHECK(device_peak_table({}).empty());
}
