#include "actors/stage/edges/device_libraries.hpp"

#include "actors/stage/edges/ucx_maker.hpp"
#include "engine/collective/nccl/maker.hpp"

namespace troupe::actors {

device_libraries with_usual(device_libraries some) {
  if (!some.sums) some.sums = std::make_shared<engine::nccl::maker>();
  if (!some.copies) some.copies = std::make_shared<ucx_maker>();
  return some;
}

}  // namespace troupe::actors
