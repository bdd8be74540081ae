# The build rules that every folder shares: language level, warnings, sanitizers, ccache, mold.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_CXX_FLAGS_RELEASE "-O2")  # assertions stay on: a bug must not train on
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g1")

set(TROUPE_SANITIZE "" CACHE STRING "Sanitizers to build with, as for -fsanitize=")
if(TROUPE_SANITIZE)
  add_compile_options(-fsanitize=${TROUPE_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TROUPE_SANITIZE})
endif()

option(TROUPE_FUZZ "Let libFuzzer drive the fuzz targets; needs clang" OFF)
if(TROUPE_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link -fno-sanitize-recover=all)
endif()

find_program(TROUPE_CCACHE ccache)
if(TROUPE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TROUPE_CCACHE})
endif()
find_program(TROUPE_MOLD mold)
if(TROUPE_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_library(troupe_options INTERFACE)
target_include_directories(troupe_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(troupe_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Werror)

# troupe_library(NAME SOURCES...): one folder, one static library.
function(troupe_library name)
  add_library(${name} STATIC ${ARGN})
  target_link_libraries(${name} PUBLIC troupe_options tl::expected)
endfunction()

# troupe_test(NAME SOURCES... LINK LIBRARIES...): one Catch2 program, each case a ctest test.
function(troupe_test name)
  cmake_parse_arguments(TEST "" "" "LINK;LABELS" ${ARGN})
  if(NOT TARGET assertion_thread)
    add_library(assertion_thread OBJECT ${PROJECT_SOURCE_DIR}/tests/assertion_thread.cpp)
    target_link_libraries(assertion_thread PRIVATE troupe_options Catch2::Catch2)
  endif()
  add_executable(${name} ${TEST_UNPARSED_ARGUMENTS} $<TARGET_OBJECTS:assertion_thread>)
  target_link_libraries(${name} PRIVATE troupe_options ${TEST_LINK} Catch2::Catch2WithMain)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${name} PRIVATE -O1)  # what it tests is optimised; itself it runs once
  endif()
  if(NOT TEST_LABELS)
    set(TEST_LABELS unit)
  endif()
  catch_discover_tests(${name}
    TEST_PREFIX "${name}: " DISCOVERY_MODE PRE_TEST
    PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 4 LABELS ${TEST_LABELS})
endfunction()

# troupe_node_allocator(PROGRAM): jemalloc for a program that computes. Fresh pages cost a tensor ten
# times what warm ones do, so nothing is given back while the program runs.
function(troupe_node_allocator program)
  if(TROUPE_SANITIZE)
    return()  # sanitizers bring their own
  endif()
  target_sources(${program} PRIVATE ${PROJECT_SOURCE_DIR}/engine/stage/allocator.cpp)
  target_link_options(${program} PRIVATE -Wl,--no-as-needed)
  target_link_libraries(${program} PRIVATE jemalloc)
endfunction()

# troupe_kernels(SOURCES...): files that use messages/base/simd.hpp, as user-written optimizers do.
# Vectorised whatever the preset; and every rounding is one that the source spells out.
function(troupe_kernels)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS
    "-O3;-ffp-contract=off;-fno-math-errno;-fno-trapping-math")
endfunction()
