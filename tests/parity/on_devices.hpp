#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <catch2/catch_test_macros.hpp>

#include "tests/fake_device/fake_device.hpp"

namespace troupe::tests {

/// Sets what all cases on devices of tests need; attention has one form that they and the CPU have.
struct devices_ready {
  devices_ready() {
    fake_device::install();
    fake_device::reset();
    at::set_num_threads(1);
    at::globalContext().setSDPUseFlash(false);
  }
};

/// No race, no read of device memory by the host, nothing written past an end.
inline void check_no_misuse() {
  const auto found = fake_device::seen();
  for (const auto& each : found.races) UNSCOPED_INFO(each);
  CHECK(found.races.empty());
  for (const auto& each : found.host_reads) UNSCOPED_INFO(each);
  CHECK(found.host_reads.empty());
  CHECK(found.overruns == 0);
}

}  // namespace troupe::tests
