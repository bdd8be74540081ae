# The core library of the C++ Actor Framework. Target: caf::core.

find_path(CAF_INCLUDE_DIR caf/config.hpp)
find_library(CAF_CORE_LIBRARY caf_core)
if(CAF_INCLUDE_DIR)
  file(STRINGS ${CAF_INCLUDE_DIR}/caf/config.hpp line REGEX "#define CAF_VERSION ")
  string(REGEX REPLACE ".*CAF_VERSION ([0-9]+).*" "\\1" CAF_VERSION "${line}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CAF
  REQUIRED_VARS CAF_CORE_LIBRARY CAF_INCLUDE_DIR VERSION_VAR CAF_VERSION)

if(CAF_FOUND AND NOT TARGET caf::core)
  add_library(caf::core INTERFACE IMPORTED)
  target_include_directories(caf::core SYSTEM INTERFACE ${CAF_INCLUDE_DIR})
  target_link_libraries(caf::core INTERFACE ${CAF_CORE_LIBRARY} Threads::Threads)
endif()
